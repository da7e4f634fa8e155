"""The number format follows the device, unless it is named."""

import pytest
import torch

from infrastructure.optimization.gpu_capability import cpu_has_bf16
from infrastructure.training.core import precision
from infrastructure.training.core.precision import (
    Precision,
    choose_device,
    choose_precision,
    training_device,
)

CPU = torch.device("cpu")


def test_the_cpu_gets_bf16_only_where_it_has_instructions_for_it() -> None:
    expected = "bf16" if cpu_has_bf16() else "fp32"
    assert choose_precision(True, CPU).name == expected


@pytest.mark.parametrize(
    ("requested", "name"), [(False, "fp32"), ("fp32", "fp32"), ("bf16", "bf16")]
)
def test_a_named_format_is_taken(requested: bool | str, name: str) -> None:
    assert choose_precision(requested, CPU).name == name


def test_fp16_on_a_cpu_is_refused() -> None:
    with pytest.raises(ValueError, match=r"core\.fp16_needs_gpu"):
        choose_precision("fp16", CPU)


def test_fp8_needs_a_gpu_that_has_it() -> None:
    with pytest.raises(ValueError, match=r"core\.fp8_needs_newer_gpu"):
        choose_precision("fp8", CPU)


def test_autocast_computes_in_the_format() -> None:
    with choose_precision("bf16", CPU).autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
    with choose_precision("fp32", CPU).autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32


def test_fp8_computes_everything_else_in_bf16() -> None:
    assert Precision("fp8", "cuda").dtype is torch.bfloat16
    assert Precision("fp16", "cuda").dtype is torch.float16


def test_kernels_of_half_precision_on_a_cpu_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(precision, "bound_kernel_caches", lambda: calls.append(True))
    choose_precision("fp32", CPU)
    choose_precision("bf16", torch.device("cuda"))
    assert calls == []
    choose_precision("bf16", CPU)
    assert calls == [True]


def test_a_gpu_number_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [choose_device(name).index for name in ("cuda:1", "cuda:0", "cuda")] == [1, 0, None]
    assert choose_device("auto").type == "cuda"
    with pytest.raises(ValueError, match=r"device_out_of_range\(device=cuda:2, num_gpus=2\)"):
        choose_device("cuda:2")


def test_a_training_needs_gradients() -> None:
    for off in (torch.no_grad(), torch.inference_mode()):
        with off, pytest.raises(ValueError, match=r"training\.gradients_disabled"):
            training_device("cpu")


def test_only_fp16_scales_gradients() -> None:
    scaler = Precision("fp16", "cpu").create_scaler()
    assert scaler is not None
    assert scaler.is_enabled()
    assert choose_precision("bf16", CPU).create_scaler() is None
    assert choose_precision(False, CPU).create_scaler() is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    assert choose_device("auto").type == "cpu"
    with pytest.raises(ValueError, match=r"core\.pytorch_sees_no_gpu"):
        choose_device("cuda")


def test_a_training_refuses_defaults_of_torch_that_would_change_it() -> None:
    assert training_device("cpu") == CPU
    torch.set_default_device("meta")
    try:
        with pytest.raises(ValueError, match=r"training\.default_device_changed\(device=meta\)"):
            training_device("cpu")
    finally:
        torch.set_default_device(None)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ValueError, match=r"training\.default_dtype_changed\(.*float64"):
            training_device("cpu")
    finally:
        torch.set_default_dtype(torch.float32)
