import pytest
import torch

from infrastructure.features.inference.methods import optimize_inference, usable_methods

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


def test_compiling_is_measured_too() -> None:
    result = optimize_inference(layers(), INPUTS, ["compile"])
    assert result.failures == {}
    assert result.seconds_of_method["compile"] > 0


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
