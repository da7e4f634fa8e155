"""What is recorded of the training of a Trainer that somebody has made."""

from pathlib import Path

import pytest

from infrastructure.training.hf_bridge.trainer_run import precision_name


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32"])
def test_the_precision_is_that_of_the_arguments(name: str, tmp_path: Path) -> None:
    from transformers import TrainingArguments

    given = {} if name == "fp32" else {name: True}
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], **given)
    assert precision_name(args) == name
