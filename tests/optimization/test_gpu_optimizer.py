"""The GPU optimizer: seed 002's samples run as written, and what each method does."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.optimization import gpu_optimizer as module
from infrastructure.optimization.gpu_capability import cpu_has_bf16
from infrastructure.optimization.gpu_optimizer import create_gpu_optimizer
from tests.optimization.conftest import FakeGpu
from tests.slow import slow

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = """
from infrastructure.optimization.gpu_optimizer import create_gpu_optimizer

# Create optimizer
optimizer = create_gpu_optimizer(
    device_ids=[0, 1],
    mixed_precision=True,
    compile_model=True
)

# Optimize model
optimized_model = optimizer.optimize_model(model, "my_model")

# Create scaler for mixed precision
scaler = optimizer.create_scaler()
"""
WATCHING = "optimizer.monitor_gpu_utilization(duration=60.0)"


def layers() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


@slow  # a compiler of C++; `seeds/test_blocks.py` runs the same without it
@pytest.mark.skipif(torch.cuda.is_available(), reason="what a machine without a GPU does")
def test_the_samples_of_the_specification_run_as_written_without_a_gpu() -> None:
    names: dict[str, Any] = {"model": layers()}
    exec(SAMPLE + WATCHING, names)
    model, scaler = names["optimized_model"], names["scaler"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model[0].weight.detach().clone()
    loss = model(torch.randn(4, 16)).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(model[0].weight, before)
    assert names["optimizer"].applied["my_model"][0] == "device: cpu"


def test_gpus_that_are_not_there_are_named(caplog: pytest.LogCaptureFixture) -> None:
    optimizer = create_gpu_optimizer(device_ids=[97])
    assert "optimization.gpus_not_available(missing=[97], available=" in caplog.text
    assert optimizer.device.type == "cpu"


@pytest.mark.parametrize(
    ("mixed_precision", "expected"),
    [(True, "bf16" if cpu_has_bf16() else "fp32"), (False, "fp32"), ("bf16", "bf16")],
)
def test_the_precision_is_the_one_requested_or_the_best(
    mixed_precision: bool | str, expected: str
) -> None:
    assert create_gpu_optimizer([], mixed_precision).precision == expected


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ("fp16", r"optimization\.fp16_needs_gpu"),
        ("fp64", r"optimization\.invalid_mixed_precision\(mixed_precision=fp64"),
    ],
)
def test_a_precision_that_cannot_be_is_refused(wrong: str, code: str) -> None:
    with pytest.raises(ValueError, match=code):
        create_gpu_optimizer([], wrong)


def test_the_forward_pass_runs_in_the_precision_and_the_weights_stay() -> None:
    model = create_gpu_optimizer([], "bf16").optimize_model(layers())
    exact = layers()(torch.ones(2, 16))
    output = model(torch.ones(2, 16))
    assert output.dtype is torch.float32
    assert not torch.equal(output, exact)
    torch.testing.assert_close(output, exact, atol=0.02, rtol=0.02)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_the_scaler_works_for_fp16_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not create_gpu_optimizer([], "bf16").create_scaler().is_enabled()
    FakeGpu(monkeypatch, (7, 5))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    on_t4 = create_gpu_optimizer([0], True)
    assert on_t4.precision == "fp16"
    monkeypatch.setattr(
        torch.amp.grad_scaler.torch.cuda.amp.common, "amp_definitely_not_available", bool
    )
    assert on_t4.create_scaler().is_enabled()


def test_a_language_model_gets_the_fastest_attention(small_llama: Any) -> None:
    small_llama.set_attn_implementation("eager")
    optimizer = create_gpu_optimizer([], False)
    optimizer.optimize_model(small_llama, "llama")
    assert small_llama.config._attn_implementation == "sdpa"
    assert "optimization.attention_replaced(best=sdpa, used=eager)" in optimizer.applied["llama"]


def test_one_process_explains_how_several_gpus_are_used(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    optimizer = module.GPUOptimizer([torch.device("cpu"), torch.device("cpu")], "fp32", False)
    optimizer.optimize_model(layers())
    assert "optimization.one_gpu_of_several_used(device=cpu, count=2)" in caplog.text


@pytest.mark.parametrize(
    ("device_ids", "used", "missing"),
    [(None, [0, 1], ""), ([1], [1], ""), ([1, 5, 2], [1], "missing=[5, 2], available=2")],
)
def test_the_gpus_that_are_there_are_used(
    device_ids: list[int] | None,
    used: list[int],
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    FakeGpu(monkeypatch, (8, 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    optimizer = create_gpu_optimizer(device_ids, compile_model=True)
    assert optimizer.devices == [torch.device("cuda", index) for index in used]
    assert (optimizer.device, optimizer.precision) == (torch.device("cuda", used[0]), "bf16")
    assert optimizer.compile_model
    assert [missing in message for message in caplog.messages] == [True][: bool(missing)]
    with pytest.raises(ValueError, match=r"core\.fp8_needs_newer_gpu"):
        create_gpu_optimizer([0], "fp8")
    assert create_gpu_optimizer([0], "fp16").precision == "fp16"


def test_what_was_done_to_a_model_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[bool] = []
    durations: list[float] = []
    monkeypatch.setattr(module, "use_tf32", lambda _: True)
    monkeypatch.setattr(module, "set_compiled", lambda _, is_on: compiled.append(is_on))
    monkeypatch.setattr(module, "readings_over", lambda seconds: durations.append(seconds) or [])
    notes = ["device: cpu", "precision: fp32", "optimization.tf32_used()"]
    for reason, note in (
        (None, "optimization.compile_not_measured()"),
        ("old", "optimization.compile_not_used(reason=old)"),
    ):
        monkeypatch.setattr(module, "can_compile", lambda _, reason=reason: reason)
        optimizer = create_gpu_optimizer([], False, compile_model=True)
        optimizer.optimize_model(layers())
        assert optimizer.applied == {"model": [*notes, note]}
    assert compiled == [True]
    assert [optimizer.monitor_gpu_utilization(), optimizer.monitor_gpu_utilization(3.0)] == [[], []]
    assert durations == [60.0, 3.0]
