"""A checkpoint holds what training changes, no more, and goes back only where it came from."""

from collections.abc import Callable

import pytest
import torch

from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.core.errors import CheckpointError
from infrastructure.models.lora import apply_lora
from infrastructure.models.trainable_state import (
    load_trainable_state,
    own_part,
    trainable_state,
    whole,
)


def llama(hidden_size: int = 32, tied: bool = False) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=hidden_size,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config)


class WithBuffers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.register_buffer("table", torch.ones(2), persistent=False)


def copy_of(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def test_full_training_holds_every_parameter_also_a_frozen_one() -> None:
    model = llama()
    model.requires_grad_(False)
    assert trainable_state(model).keys() == dict(model.named_parameters()).keys()


def test_lora_holds_its_matrices_alone_also_while_they_are_frozen() -> None:
    model = apply_lora(llama(), LoraConfig(r=2))
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    model.requires_grad_(False)
    assert trainable_state(model).keys() == names
    assert all("lora_" in name for name in names)


def test_what_is_trained_beside_a_lora_is_held_too() -> None:
    model = apply_lora(llama(), LoraConfig(r=2))
    norm = "base_model.model.model.norm.weight"
    dict(model.named_parameters())[norm].requires_grad_(True)
    held = copy_of(trainable_state(model))
    assert norm in held
    with torch.no_grad():
        dict(model.named_parameters())[norm].fill_(7.0)
    load_trainable_state(model, held)
    assert torch.equal(dict(model.named_parameters())[norm], torch.ones(32))


def test_buffers_that_belong_to_the_state() -> None:
    assert trainable_state(WithBuffers()).keys() == {
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    }


def test_tied_weights_once_and_compiled_names_plain() -> None:
    model = llama(tied=True)
    names = trainable_state(model).keys()
    assert "lm_head.weight" not in names
    assert "model.embed_tokens.weight" in names
    assert trainable_state(torch.compile(model, backend="eager")).keys() == names


@pytest.mark.parametrize("tied", [False, True])
def test_there_and_back(tied: bool) -> None:
    model = llama(tied=tied)
    saved = copy_of(trainable_state(model))
    ids = torch.arange(8).unsqueeze(0)
    before = model(ids).logits
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    assert not torch.equal(model(ids).logits, before)
    load_trainable_state(model, saved)
    assert torch.equal(model(ids).logits, before)


Change = Callable[[dict[str, torch.Tensor]], object]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda t: t.pop("model.norm.weight"),
            r"models\.checkpoint_lacks_tensors\(count=1, name=model\.norm\.weight\)",
        ),
        (
            lambda t: t.update(extra=torch.zeros(1)),
            r"models\.checkpoint_has_extra_tensors\(count=1, name=extra\)",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(3)}),
            r"models\.checkpoint_tensor_differs.*stored=float32\[3\], own=float32\[32\]",
        ),
        (
            lambda t: t.update({"model.norm.weight": t["model.norm.weight"].half()}),
            r"models\.checkpoint_tensor_differs.*stored=float16\[32\], own=float32\[32\]",
        ),
    ],
)
def test_what_does_not_fit_changes_nothing(change: Change, sentence: str) -> None:
    model = llama()
    saved = {name: torch.zeros_like(t) for name, t in trainable_state(model).items()}
    change(saved)
    before = copy_of(trainable_state(model))
    with pytest.raises(CheckpointError, match=sentence):
        load_trainable_state(model, saved)
    assert all(torch.equal(before[name], t) for name, t in trainable_state(model).items())


def test_the_first_of_several_names_is_shown_with_their_number() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    whole_state = trainable_state(model)
    rest = {name: whole_state[name] for name in ("1.weight", "0.weight")}
    with pytest.raises(CheckpointError, match=r"lacks_tensors\(count=2, name=0\.bias\)"):
        load_trainable_state(model, rest)
    more = {**whole_state, **dict.fromkeys(("c", "a", "b"), torch.zeros(1))}
    with pytest.raises(CheckpointError, match=r"extra_tensors\(count=3, name=a\)"):
        load_trainable_state(model, more)


def test_a_module_that_trains_in_full_beside_a_lora_is_held_while_frozen() -> None:
    model = apply_lora(llama(), LoraConfig(r=2, target_modules=["q_proj"]), None, ["lm_head"])
    model.requires_grad_(False)
    names = trainable_state(model).keys()
    assert "base_model.model.lm_head.modules_to_save.default.weight" in names
    assert "base_model.model.lm_head.original_module.weight" not in names


class Sharded:
    """A tensor that lies on several ranks."""

    def full_tensor(self) -> str:
        return "whole"

    def to_local(self) -> str:
        return "part"


def test_a_sharded_tensor_has_a_whole_and_an_own_part() -> None:
    plain, sharded = torch.ones(2), Sharded()
    assert whole(plain) is own_part(plain) is plain
    assert (whole(sharded), own_part(sharded)) == ("whole", "part")  # type: ignore[arg-type]
