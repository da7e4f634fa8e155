"""The classes that are made from a whole configuration."""

from pathlib import Path

import pytest

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.features.specification.whole_config import DataPipeline


def test_data_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"specification\.texts_without_tokenizer"):
        DataPipeline(DataConfig(path=str(tmp_path)))
