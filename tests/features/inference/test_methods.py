from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.features.inference import methods
from infrastructure.features.inference.methods import (
    InferenceResult,
    find_fastest_inference,
    latency_seconds,
    optimize_inference,
    usable_methods,
)

INPUTS = (torch.randn(4, 32),)


def layers() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(6)], torch.nn.Dropout(0.5))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own about TorchScript
def test_the_fastest_form_with_the_same_outputs_is_kept() -> None:
    model = layers()
    result = optimize_inference(model, INPUTS, ["export", "torchscript"])
    assert not model.training
    assert set(result.seconds_of_method) == {"export", "torchscript"}
    assert result.after_seconds == min(result.before_seconds, *result.seconds_of_method.values())
    assert result.speedup >= 1
    with torch.inference_mode():
        torch.testing.assert_close(result.model(*INPUTS), model(*INPUTS))


def test_compiling_is_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler, which takes seconds, is in the slow test of `temper bench`."""
    compiled: list[object] = []

    def compile_model(model: torch.nn.Module) -> torch.nn.Module:
        compiled.append(model)
        return model

    monkeypatch.setattr(torch, "compile", compile_model)
    model = layers()
    result = optimize_inference(model, INPUTS, ["compile"])
    assert result.failures == {}
    assert result.seconds_of_method["compile"] > 0
    assert compiled == [model]


class Branching(torch.nn.Module):
    """Its path depends on its input, which a trace does not see and an export refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return values * self.calls


@pytest.mark.filterwarnings("ignore")  # torch's own about what it traces
def test_a_form_with_other_outputs_is_not_taken() -> None:
    result = optimize_inference(Branching(), INPUTS, ["torchscript"])
    assert result.method == "eager"
    assert result.seconds_of_method == {}
    assert "AssertionError" in result.failures["torchscript"]


def test_tensorrt_is_tried_where_it_is_installed_and_named_where_it_is_not() -> None:
    assert "tensorrt" not in usable_methods()  # not in the tested matrix
    result = optimize_inference(layers(), INPUTS, ["tensorrt"])
    assert "pip install torch_tensorrt" in result.failures["tensorrt"]
    assert result.method == "eager"


def test_an_unknown_method_is_refused() -> None:
    unknown = r"unknown_methods\(unknown=\['onnx'\], methods=(.*)\)"
    with pytest.raises(ValueError, match=unknown) as raised:
        optimize_inference(layers(), INPUTS, ["onnx"])
    listed = str(raised.value).partition("methods=")[2].removesuffix(")").split(", ")
    assert {*listed} == {"compile", "export", "torchscript", "tensorrt"}


def made(change: Callable[[torch.Tensor], object]) -> Callable[..., Callable[..., object]]:
    return lambda model, inputs: lambda *given: change(model(*given))


def test_the_first_of_the_fastest_that_computes_the_same_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = torch.nn.Linear(32, 32)
    seconds = {
        "near": (3.0, made(lambda out: out + 9e-4)),
        "half": (2.0, made(lambda out: out.half())),
        "as fast": (2.0, made(lambda out: out)),
        "named": (2.5, made(lambda out: {"logits": out})),
        "far": (1.0, made(lambda out: out + 0.1)),
        "more": (1.0, made(lambda out: (out, out))),
        "slower": (5.0, made(lambda out: [out])),
    }
    speeds = iter([4.0, *(seconds[name][0] for name in seconds if name not in ("far", "more"))])
    monkeypatch.setattr(methods, "METHODS", {name: way for name, (_, way) in seconds.items()})
    monkeypatch.setattr(methods, "latency_seconds", lambda *_: next(speeds))
    result = optimize_inference(model, INPUTS)
    assert (result.method, result.before_seconds, result.after_seconds) == ("half", 4.0, 2.0)
    assert result.speedup == 2.0
    assert result.seconds_of_method == {
        **{"near": 3.0, "half": 2.0, "as fast": 2.0, "named": 2.5, "slower": 5.0}
    }
    assert [*result.failures] == ["far", "more"]
    output: Any = result.model(*INPUTS)
    assert output.dtype == torch.float16


def test_the_time_of_a_call_is_the_median_after_the_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    took = [*(100.0, 100.0, 100.0), *(1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 5.0, 50.0)]
    times, calls = [0.0], list[object]()
    monkeypatch.setattr(methods.time, "perf_counter", lambda: times[0])

    def model(*given: object) -> None:
        times[0] += took[len(calls)]
        calls.append(given)
        assert torch.is_inference_mode_enabled()

    assert latency_seconds(model, INPUTS) == 5.5
    assert calls == [INPUTS] * 13


def test_methods_are_those_whose_packages_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(usable_methods()) == ["compile", "export", "torchscript"]
    monkeypatch.setattr(methods, "is_installed", lambda name: name == "torch_tensorrt")
    assert sorted(usable_methods()) == ["compile", "export", "tensorrt", "torchscript"]


def test_a_lora_is_merged_unless_its_base_is_quantized() -> None:
    class Lora(torch.nn.Linear):
        is_quantized = False

        def merge_and_unload(self) -> str:
            return "merged"

    plain, lora = torch.nn.Linear(1, 1), Lora(1, 1)
    assert methods._merged(plain) is plain
    assert str(methods._merged(lora)) == "merged"
    lora.is_quantized = True
    assert methods._merged(lora) is lora


def test_rows_of_random_tokens_are_as_many_and_as_long_as_requested(
    saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[torch.Tensor] = []

    def take(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> InferenceResult:
        given.extend(inputs)
        return InferenceResult(model, "eager", 1.0, 1.0)

    monkeypatch.setattr(methods, "optimize_inference", take)
    config = DeploymentConfig(model_name=str(saved_llama), device="cpu")
    result, notes = find_fastest_inference(config, 3, 128)
    [tokens] = given
    assert (tokens.shape, notes) == ((3, 128), [])
    vocabulary: int = result.model.model.config.vocab_size  # type: ignore[attr-defined]
    assert vocabulary - 40 < int(tokens.max()) < vocabulary
