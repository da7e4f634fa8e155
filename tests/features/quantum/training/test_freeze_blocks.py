"""The blocks of a model with more than ten of them, and the training of only some."""

import pytest
import torch

from infrastructure.features.quantum.training.freeze_blocks import (
    block_name,
    forget_optimizer_moments,
    phase_blocks,
    train_only,
)
from infrastructure.training.core.state import Phase, TrainingState

NUM_BLOCKS = 12


class Blocks(torch.nn.Module):
    """Parameters with the names of a Llama's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(3, 2)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(NUM_BLOCKS))
        self.norm = torch.nn.LayerNorm(2)


@pytest.fixture
def state() -> TrainingState:
    """A step whose gradients are there; the bias of the second block is not in the optimizer."""
    state = TrainingState(Blocks())
    named = dict(state.model.named_parameters())
    trained = [p for name, p in named.items() if name != "layers.1.bias"]
    state.optimizer = torch.optim.AdamW(trained, lr=1e-3)
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
        state.optimizer.state[parameter] = {"step": torch.tensor(1.0)}
    return state


def trained_names(state: TrainingState) -> list[str]:
    """Of the weights that train, with their gradients; the others have none."""
    weights = {n: p for n, p in state.model.named_parameters() if n.endswith("weight")}
    trained = [name for name, p in weights.items() if p.requires_grad]
    assert [name for name, p in weights.items() if p.grad is not None] == trained
    return [name.removesuffix(".weight") for name in trained]


def layers(*numbers: int) -> list[str]:
    return ["embed_tokens", *(f"layers.{number}" for number in numbers), "norm"]


def test_parameters_outside_of_blocks_have_no_name() -> None:
    names = ("embed_tokens.weight", "layers.0.bias", "layers.11.bias", "norm.bias", "head.weight")
    assert [block_name(name) for name in names] == [None, "block 0", "block 11", None, None]


def test_the_blocks_of_a_phase_are_in_their_order(state: TrainingState) -> None:
    found = phase_blocks(state)
    assert list(found) == [f"block {number}" for number in range(NUM_BLOCKS)]
    assert [len(parameters) for parameters in found.values()] == [2, 1] + [2] * (NUM_BLOCKS - 2)
    state.phase = Phase("some", 1, frozenset({"layers.10.weight", "layers.2.bias", "norm.bias"}))
    assert {name: len(parameters) for name, parameters in phase_blocks(state).items()} == {
        "block 2": 1,
        "block 10": 1,
    }


@pytest.mark.parametrize(
    ("chosen", "numbers"),
    [
        ({"block 10", "block 2"}, [2, 10]),
        ({"block 10", "block 99"}, [10]),
        ({"block 99"}, list(range(NUM_BLOCKS))),  # there is none of them: all train
        (set(), list(range(NUM_BLOCKS))),
        (None, list(range(NUM_BLOCKS))),
    ],
)
def test_only_the_chosen_blocks_train_and_are_remembered(
    chosen: set[str] | None, numbers: list[int], state: TrainingState
) -> None:
    wanted = None if chosen is None else frozenset(chosen)
    forget_optimizer_moments(state, wanted)
    assert state.optimizer is not None
    remembered = {id(parameter) for parameter in state.optimizer.state}
    train_only(state, wanted)
    assert trained_names(state) == layers(*numbers)
    weights = {n: p for n, p in state.model.named_parameters() if n.endswith("weight")}
    kept = [n.removesuffix(".weight") for n, p in weights.items() if id(p) in remembered]
    assert kept == layers(*numbers)


def test_a_block_that_was_frozen_trains_again_when_it_is_chosen(state: TrainingState) -> None:
    train_only(state, frozenset({"block 3"}))
    train_only(state, frozenset({"block 4"}))
    trained = [name for name, p in state.model.named_parameters() if p.requires_grad]
    assert [name for name in trained if "layers." in name and "layers.1." not in name] == [
        "layers.4.weight",
        "layers.4.bias",
    ]
