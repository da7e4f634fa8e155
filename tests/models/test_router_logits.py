"""Router logits balance experts in training, and are nowhere else."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.models.router_logits import (
    has_router_logits,
    router_logits_off,
    write_without_router_logits,
)
from tests.models.architectures import tiny_model

IDS = torch.arange(3, 9).unsqueeze(0)


def test_they_are_computed_in_training_and_measured_but_not_written_with() -> None:
    model = tiny_model("qwen3_moe_balanced")
    write_without_router_logits(model)
    assert model(IDS, use_cache=False).router_logits is not None
    assert model(IDS, use_cache=True).router_logits is not None  # with gradients
    with torch.no_grad():
        assert model(IDS, use_cache=False).router_logits is not None  # an evaluation
        assert model(IDS, use_cache=True).router_logits is None
        assert model.eval().generate(IDS, max_new_tokens=2, do_sample=False).shape == (1, 8)


@pytest.mark.parametrize("architecture", ["qwen3_moe", "llama"])
def test_a_model_without_them_gets_no_hook(architecture: str) -> None:
    model = tiny_model(architecture)
    assert not has_router_logits(model)
    write_without_router_logits(model)
    assert not model._forward_pre_hooks


class Config:
    """Configuration like that of a vision-language model, with one for its text part."""

    def __init__(self, own: bool | None, text: bool | None) -> None:
        self.output_router_logits = own
        self.text = SimpleNamespace(output_router_logits=text)

    def get_text_config(self) -> Any:
        return self.text


@pytest.mark.parametrize(("own", "text"), [(True, False), (False, True), (True, True)])
def test_each_configuration_that_has_them_gets_them_back(own: bool, text: bool) -> None:
    model: Any = SimpleNamespace(config=Config(own, text))

    def both() -> tuple[Any, Any]:
        return model.config.output_router_logits, model.config.text.output_router_logits

    assert has_router_logits(model)

    def fail() -> None:
        with router_logits_off(model):
            assert both() == (False, False)
            assert not has_router_logits(model)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert both() == (own, text)
    assert not has_router_logits(SimpleNamespace(config=Config(None, False)))  # type: ignore[arg-type]
    assert not has_router_logits(torch.nn.Linear(1, 1))
