"""What fitted is remembered from training to training."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from infrastructure.training.sizing.micro_batch_memory import (
    KnownMicroBatchLimit,
    describe_device,
    memory_limits,
)

T4 = {"device": "Tesla T4", "memory_bytes": 15 << 30, "model": "a", "lora": True}


def test_the_next_training_takes_what_fitted_and_no_more_than_configured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert KnownMicroBatchLimit(memory_limits(tmp_path), T4).at_most(8) == 8
    KnownMicroBatchLimit(memory_limits(tmp_path), T4).remember(4)
    assert not caplog.text
    again = KnownMicroBatchLimit(memory_limits(tmp_path), T4)
    assert again.at_most(2) == 2
    assert again.at_most(4) == 4
    assert not caplog.text
    assert again.at_most(8) == 4
    assert "training.micro_batch_did_not_fit_before(fitted=4, requested=8, " in caplog.text
    assert KnownMicroBatchLimit(memory_limits(tmp_path), {**T4, "lora": False}).at_most(8) == 8


@pytest.mark.parametrize("size", ["4", 0, -1, 2.5, True, None])
def test_a_size_that_is_none_is_passed_over(tmp_path: Path, size: object) -> None:
    memory_limits(tmp_path).put(T4, size)
    assert memory_limits(tmp_path).get(T4) is None


def test_the_processor_is_a_device_with_a_name_and_memory() -> None:
    facts = describe_device(torch.device("cpu"))
    assert facts["device"]
    assert facts["memory_bytes"] > 1 << 28


def test_a_gpu_is_named_by_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(name="Tesla T4", total_memory=15 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    facts = describe_device(torch.device("cuda"))
    assert facts == {"device": "Tesla T4", "memory_bytes": 15 << 30}
