"""The tokenizer that lies beside the sample tasks is the one that would be made of them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.data.samples import (
    SAMPLE_TOKENIZER,
    is_sample_data,
    use_sample_data,
)
from infrastructure.models import model_manager
from infrastructure.models.tokenizer import read_tokenizer
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter
from tests.data.write_sample_tokenizer import write


def test_the_tokenizer_of_the_sample_tasks_is_what_would_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise: python -m tests.data.write_sample_tokenizer"""
    write(tmp_path / "tokenizer.json")
    assert (tmp_path / "tokenizer.json").read_bytes() == SAMPLE_TOKENIZER.read_bytes()
    config = DeploymentConfig()
    use_sample_data(config)
    assert is_sample_data(config.data.copy_with(max_length=77))
    for other in ({"prompt_column": "completion"}, {"eval_path": None}, {"path": "x.jsonl"}):
        assert not is_sample_data(config.data.copy_with(**other))
    made: list[int] = []

    def make(texts: object, vocab_size: int) -> Any:
        made.append(vocab_size)
        return read_tokenizer(SAMPLE_TOKENIZER)

    monkeypatch.setattr(model_manager, "train_tokenizer", make)
    adapter = StandardModelAdapter(config.model, config.training, torch.device("cpu"))
    adapter.data_config = config.data
    known = adapter.initialize_tokenizer()
    assert known is not None
    assert (made, known.eos_token) == ([], "<|end|>")
    config.model.embedded.vocab_size = 999
    adapter.initialize_tokenizer()
    assert made == [999]
