import copy

import pytest
import torch

from infrastructure.config.types import parse_size
from infrastructure.optimization import gpu_capability
from infrastructure.optimization.gpu_capability import (
    best_attention,
    best_precision,
    can_compile,
    drop_gpu_cache_above,
    limit_gpu_memory,
    refuse_fp8,
    require_capability,
    train_in_fp8,
    use_tf32,
)
from tests.optimization.conftest import FakeGpu

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
T4, A100, ADA, HOPPER = (7, 5), (8, 0), (8, 9), (9, 0)


@pytest.mark.parametrize(
    ("capability", "precision"), [(T4, "fp16"), (A100, "bf16"), (HOPPER, "bf16")]
)
def test_a_gpu_computes_in_the_best_format_that_it_has(
    capability: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeGpu(monkeypatch, capability)
    assert best_precision(GPU) == precision


@pytest.mark.parametrize("instructions", [(), ("avx512_bf16",), ("amx_tile",)])
def test_a_cpu_computes_in_bf16_where_it_has_the_instructions(
    instructions: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("avx512_bf16", "amx_tile"):
        has_it = name in instructions
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda has_it=has_it: has_it)
    assert best_precision(CPU) == ("bf16" if instructions else "fp32")


@pytest.mark.parametrize(("capability", "has_tf32"), [(T4, False), (A100, True)])
def test_tf32_is_switched_on_where_it_is(
    capability: tuple[int, int], has_tf32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeGpu(monkeypatch, capability)
    calls: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", calls.append)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert use_tf32(GPU) is has_tf32
    assert calls == (["high"] if has_tf32 else [])
    assert torch.backends.cudnn.allow_tf32 is has_tf32
    assert not use_tf32(CPU)


def test_flash_attention_needs_its_package_and_a_recent_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_capability, "is_installed", lambda package: True)
    FakeGpu(monkeypatch, A100)
    assert best_attention(GPU) == "flash_attention_2"
    FakeGpu(monkeypatch, T4)
    assert best_attention(GPU) == "sdpa"
    FakeGpu(monkeypatch, A100)
    monkeypatch.setattr(gpu_capability, "is_installed", lambda package: False)
    assert best_attention(GPU) == "sdpa"
    assert best_attention(CPU) == "sdpa"


def test_compiling_needs_triton_and_a_gpu_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpu(monkeypatch, T4)
    monkeypatch.setattr(gpu_capability, "is_installed", lambda package: package != "triton")
    assert can_compile(GPU) == "optimization.triton_not_installed()"
    monkeypatch.setattr(gpu_capability, "is_installed", lambda package: True)
    assert can_compile(GPU) is None
    FakeGpu(monkeypatch, (7, 0))
    assert can_compile(GPU) is None
    FakeGpu(monkeypatch, (6, 1))
    assert can_compile(GPU) == "optimization.gpu_too_old_for_triton()"


def test_compiling_for_a_cpu_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert can_compile(CPU) == "optimization.no_cpp_compiler()"
    for name in ("g++", "clang++", "c++"):
        monkeypatch.setattr(gpu_capability.shutil, "which", {name: "/usr/bin/x"}.get)
        assert can_compile(CPU) is None


def test_a_gpu_below_the_least_capability_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpu(monkeypatch, T4)
    require_capability(GPU, None)
    require_capability(GPU, 7.5)
    with pytest.raises(
        ValueError,
        match=r"compute_capability_too_low\(least=8.*gpu=Tesla T4.*major=7.*minor=5",
    ):
        require_capability(GPU, 8.0)
    for least in (7.6, 8.1):
        with pytest.raises(ValueError, match=rf"compute_capability_too_low\(least={least}, "):
            require_capability(GPU, least)
    FakeGpu(monkeypatch, (8, 6))
    for least in (8.6, 7.9, 8.0):
        require_capability(GPU, least)
    with pytest.raises(
        ValueError, match=r"optimization\.compute_capability_without_gpu.*device=cpu"
    ):
        require_capability(CPU, 8.0)


@pytest.mark.parametrize(
    ("limit", "share", "fractions"),
    [("8GB", None, [0.5]), (None, 0.9, [0.9]), ("8GB", 0.25, [0.25]), (None, None, [])],
)
def test_the_smaller_of_a_size_and_a_share_limits_the_gpus_memory(
    limit: str | None,
    share: float | None,
    fractions: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = FakeGpu(monkeypatch, T4)
    limit_bytes = None if limit is None else parse_size(limit)
    limit_gpu_memory(GPU, limit_bytes, share)
    limit_gpu_memory(CPU, limit_bytes, share)
    assert gpu.fractions == fractions


def test_free_blocks_beyond_the_limit_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, T4)
    gpu.reserved, gpu.allocated = 5_000, 2_000
    assert not drop_gpu_cache_above(GPU, 3_000)
    assert drop_gpu_cache_above(GPU, 2_999)
    assert not drop_gpu_cache_above(CPU, 0)
    assert gpu.num_emptied == 1


def test_fp8_is_refused_where_it_cannot_be_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"core\.fp8_needs_newer_gpu"):
        refuse_fp8(CPU)
    FakeGpu(monkeypatch, A100)
    with pytest.raises(ValueError, match=r"core\.fp8_needs_newer_gpu"):
        refuse_fp8(GPU)
    FakeGpu(monkeypatch, (8, 6))
    with pytest.raises(ValueError, match=r"core\.fp8_needs_newer_gpu"):
        refuse_fp8(GPU)
    FakeGpu(monkeypatch, ADA)
    refuse_fp8(GPU)


@pytest.mark.filterwarnings("ignore")  # torchao's own, at its import
def test_large_layers_train_in_fp8_with_the_same_names_and_nearly_the_same_numbers() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))
    plain = copy.deepcopy(model)
    converted = train_in_fp8(model, emulate=True)
    kinds = [type(module).__name__ for module in converted]
    assert kinds == ["Float8Linear", "Tanh", "Linear"]  # 10 does not divide by 16
    assert converted.state_dict().keys() == plain.state_dict().keys()
    inputs = torch.randn(5, 64)
    converted(inputs).pow(2).sum().backward()
    plain(inputs).pow(2).sum().backward()
    ours, theirs = model[0].weight.grad, plain[0].weight.grad
    assert ours is not None
    assert theirs is not None
    assert torch.nn.functional.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0) > 0.99
    assert not torch.equal(ours, theirs)


@pytest.mark.filterwarnings("ignore")  # torchao's own, at its import
def test_the_output_layer_is_not_converted() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 16), torch.nn.Linear(16, 8), torch.nn.Linear(8, 16)
    )
    model.append(torch.nn.Linear(16, 32))
    model.get_output_embeddings = lambda: model[3]  # type: ignore[assignment]
    kinds = [type(module).__name__ for module in train_in_fp8(model, emulate=True)]
    assert kinds == ["Float8Linear", "Linear", "Linear", "Linear"]
