"""Models of any kind are called right, and a probe leaves no trace."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText

from infrastructure.models.model_inputs import (
    accepted_arguments,
    attention_implementation,
    bidirectional_mask,
    compute_dtype,
    forward_parameters,
    inner_model,
    is_sharded,
    language_part,
    logits_of,
    probing,
    relative_difference,
    text_part,
    tolerance,
    vision_tower,
    within_forward,
)
from tests.models.architectures import tiny_model
from tests.training.seeing_models import llava_config, save_llava, tiny_tokenizer

ARGUMENTS = {"input_ids": torch.ones(1, 2), "attention_mask": torch.ones(1, 2)}


class TakesIds(torch.nn.Module):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return input_ids


class TakesX(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class TakesXAndMask(torch.nn.Module):
    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return x * attention_mask


class TakesAnything(torch.nn.Module):
    def forward(self, use_cache: bool = True, **kwargs: Any) -> Any:
        return kwargs


class Wrapper(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.wrapped = model

    def get_base_model(self) -> torch.nn.Module:
        return self.wrapped

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.wrapped(*args, **kwargs)


def test_a_forward_gets_what_it_takes() -> None:
    assert accepted_arguments(TakesIds(), ARGUMENTS)[1].keys() == {"input_ids"}
    positional, keywords = accepted_arguments(TakesX(), ARGUMENTS)
    assert positional == [ARGUMENTS["input_ids"]]
    assert keywords == {}
    positional, keywords = accepted_arguments(TakesXAndMask(), ARGUMENTS)
    assert positional == [ARGUMENTS["input_ids"]]
    assert keywords == {"attention_mask": ARGUMENTS["attention_mask"]}
    assert accepted_arguments(TakesAnything(), ARGUMENTS)[1] == {**ARGUMENTS, "use_cache": False}


def test_wrappers_are_seen_through() -> None:
    model = TakesIds()
    assert inner_model(Wrapper(model)) is model
    assert accepted_arguments(Wrapper(model), ARGUMENTS)[1].keys() == {"input_ids"}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda t: t,
        lambda t: {"logits": t},
        lambda t: SimpleNamespace(logits=t),
        lambda t: (torch.tensor(1.0), t),
    ],
)
def test_logits_are_found(wrap: Any) -> None:
    logits = torch.zeros(1, 2, 3)
    assert logits_of(wrap(logits)) is logits


@pytest.mark.parametrize(
    "output", [torch.tensor(1.0), {"loss": 1.0}, (torch.tensor(1.0),), SimpleNamespace(logits=None)]
)
def test_a_loss_alone_is_refused(output: Any) -> None:
    with pytest.raises(ValueError, match=r"models\.forward_returns_no_logits"):
        logits_of(output)


def test_evaluation_mode_returns_to_what_each_module_had() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout().eval())
    seen = []
    with contextlib.suppress(KeyError), probing(model):
        seen.append(model[0].training)
        raise KeyError
    assert seen == [False]
    assert [m.training for m in model.modules()] == [True, True, False]


def test_difference_is_relative_and_shapes_must_agree() -> None:
    assert relative_difference(torch.tensor([101.0]), torch.tensor([100.0])) == pytest.approx(0.01)
    assert relative_difference(torch.zeros(2), torch.zeros(2)) == 0.0
    assert relative_difference(torch.zeros(0), torch.zeros(0)) == 0.0
    assert relative_difference(torch.zeros(1), torch.zeros(2)) == float("inf")
    assert relative_difference(torch.tensor([float("nan")]), torch.ones(1)) == float("inf")


def test_the_part_that_sees_reads_no_text(saved_llama: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    llava = AutoModelForImageTextToText.from_pretrained(save_llava(tmp_path / "llava"))
    assert vision_tower(llava) is llava.model.vision_tower
    assert vision_tower(AutoModelForCausalLM.from_pretrained(saved_llama)) is None
    llava.model.vision_tower = None
    assert vision_tower(llava) is None


def test_attention_is_that_of_the_part_that_reads_text() -> None:
    """Of a module around a configuration with towers, which names no decoder, that is all of it."""
    around = torch.nn.Linear(1, 1)
    towers: Any = {"vision_config": object}
    around.config = SimpleNamespace(sub_configs=towers, _attn_implementation="eager")  # type: ignore
    assert text_part(around) is around
    assert attention_implementation(around) == "eager"
    decoder = torch.nn.Linear(1, 1)
    decoder.config = SimpleNamespace(_attn_implementation="sdpa")  # type: ignore
    around.get_decoder = lambda: decoder  # type: ignore
    assert text_part(around) is decoder
    assert attention_implementation(around) == "sdpa"


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_every_token_of_a_row_attends_to_its_tokens_and_to_no_padding(architecture: str) -> None:
    model: Any = tiny_model(architecture, torch.bfloat16)
    real = torch.tensor([[1, 1, 0], [1, 1, 1]])
    mask = bidirectional_mask(model, real)
    assert (mask.shape, mask.dtype) == ((2, 1, 3, 3), torch.bool)
    assert all(torch.equal(mask[:, 0, place], real.bool()) for place in range(3))
    model.set_attn_implementation("eager")
    added = bidirectional_mask(model, real)
    assert added.dtype == torch.bfloat16
    assert torch.equal(added == 0, mask)
    assert added[0, 0, 0, 2] == torch.finfo(torch.bfloat16).min


def test_a_model_computes_in_the_format_of_autocast_or_of_its_weights() -> None:
    model = torch.nn.Linear(1, 1, dtype=torch.float16)
    model.counts = torch.nn.Parameter(torch.ones(1, dtype=torch.int64), requires_grad=False)
    model._parameters = {"counts": model.counts, "weight": model.weight}
    assert compute_dtype(model) is torch.float16
    with torch.autocast("cpu", torch.bfloat16):
        assert compute_dtype(model) is torch.bfloat16
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    assert [tolerance(dtype) for dtype in dtypes] == [1e-4, 1e-4, 5e-2, 5e-2]


def test_the_language_part_is_named_as_its_weights_are() -> None:
    with torch.device("meta"):
        llava = AutoModelForImageTextToText.from_config(llava_config(tiny_tokenizer("<image>")))
    assert language_part(Wrapper(llava)) == "model.language_model"
    decoder: Any = torch.nn.Linear(1, 1)
    decoder.get_decoder = lambda: decoder
    for model in (torch.nn.Linear(1, 1), decoder):
        with pytest.raises(ValueError, match=r"language_part_not_identified\(name=Linear\)"):
            language_part(model)


def test_parts_are_computed_within_the_forward_of_a_sharded_module() -> None:
    module: Any = torch.nn.Linear(1, 1)
    assert within_forward(module, max, 3, 7) == 7
    assert not is_sharded(module)
    module.in_forward = lambda compute, *given: ("inside", compute(*given))
    assert within_forward(module, max, 3, 7) == ("inside", 7)
    assert is_sharded(module)


def test_parameters_of_a_forward_are_those_that_have_a_name() -> None:
    class Takes(torch.nn.Module):
        def forward(self, first: Any, /, second: Any, *rest: Any, third: Any = 1) -> None: ...

    assert forward_parameters(Takes()) == ({"second", "third"}, False)
    assert forward_parameters(Wrapper(TakesAnything())) == ({"use_cache"}, True)
    first = torch.zeros(1, 2, 3)
    assert logits_of((torch.zeros(2, 3), first, torch.ones(1, 2, 3))) is first
    with pytest.raises(ValueError, match=r"models\.forward_returns_no_logits"):
        logits_of({"logits": torch.zeros(2, 3)})
