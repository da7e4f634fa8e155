"""Any model and optimizer come back as they were, or not at all."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from infrastructure.backup.state.model_state import (
    MAX_LISTED,
    ModelState,
    capture,
    restore,
    stored,
)
from infrastructure.core.errors import CheckpointError


class Counting(torch.nn.Linear):
    """Has something to keep that is no tensor."""

    def __init__(self, width: int = 3, *, bias: bool = True) -> None:
        super().__init__(2, width, bias=bias)
        self.count = 0

    def get_extra_state(self) -> int:
        return self.count

    def set_extra_state(self, state: int) -> None:
        self.count = state


def parts(width: int = 3, *, bias: bool = True, num_groups: int = 1) -> Any:
    model = Counting(width, bias=bias)
    weights = list(model.parameters())
    groups = [weights] if num_groups == 1 else [[weight] for weight in weights]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=0.1)
    return model, optimizer


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def saved(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> ModelState:
    """As a store gives it back: copies of the tensors, and values that went through JSON."""
    state = capture(model, optimizer, {"step": 7})
    tensors = {
        group: {name: tensor.clone() for name, tensor in members.items()}
        for group, members in state.tensors.items()
    }
    return ModelState(tensors, json.loads(json.dumps(state.values)))


def everything(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """All that there is of both, and of the random state, to compare."""
    parts = [model.state_dict(), optimizer.state_dict(), torch.get_rng_state()]
    return json.dumps(parts, default=torch.Tensor.tolist)


def test_all_of_it_comes_back() -> None:
    model, optimizer = parts()
    step(model, optimizer)
    model.count = 5
    state, before = saved(model, optimizer), everything(model, optimizer)
    assert state.values["step"] == 7
    assert {name.partition("/")[0] for name in stored(state)} == {"model", "optimizer", "random"}
    other, fresh = parts()
    step(other, fresh)
    torch.rand(5)
    fresh.param_groups[0]["lr"] = 0.5
    restore(state, other, fresh)
    assert everything(other, fresh) == before


def change(state: ModelState, name: str, value: torch.Tensor | None) -> None:
    """Put another tensor into the model's, or none."""
    state.tensors["model"].pop(name, None)
    if value is not None:
        state.tensors["model"][name] = value


def bias_of(saved: str) -> str:
    return f"model_tensor_differs(name=bias, saved={saved}, current=F32[3])"


def moment_of(key: str, index: int, current: str) -> str:
    shapes = f"saved_shape=[9], current_shape={current}"
    return f"optimizer_state_shape_differs(key={key}, index={index}, {shapes})"


MISFITS: list[tuple[Callable[[ModelState], Any], str | None]] = [
    (lambda state: change(state, "more", torch.ones(1)), "only_in_checkpoint(name=more)"),
    (lambda state: change(state, "bias", None), "only_in_model(name=bias)"),
    (lambda state: change(state, "bias", torch.ones(4)), bias_of("F32[4]")),
    (lambda state: change(state, "bias", torch.ones(3).double()), bias_of("F64[3]")),
    (
        lambda state: change(state, "bias", torch.ones(3, dtype=torch.complex128)),
        bias_of("torch.complex128[3]"),
    ),
    (lambda state: state.values["model"].update(bias=3), bias_of("int")),
    (
        lambda state: state.values.update(optimizer_class="SGD"),
        "optimizer_class_differs(saved=SGD, current=AdamW)",
    ),
    (
        lambda state: state.tensors["optimizer"].update({"1/exp_avg": torch.ones(9)}),
        moment_of("exp_avg", 1, "[3]"),
    ),
    (
        lambda state: state.tensors["optimizer"].update({"0/exp_avg_sq": torch.ones(9)}),
        moment_of("exp_avg_sq", 0, "[3, 2]"),
    ),
    (
        lambda state: state.values["optimizer"]["param_groups"][0]["params"].pop(),
        "optimizer_groups_differ(saved=[1], current=[2])",
    ),
    (lambda state: state.values.update(writer="a process"), None),
    (lambda state: state.values.pop("writer"), None),
]


@pytest.mark.parametrize(("misfit", "problem"), MISFITS)
def test_what_does_not_fit_is_named_and_changes_nothing(
    misfit: Callable[[ModelState], Any], problem: str | None
) -> None:
    model, optimizer = parts()
    step(model, optimizer)
    state = saved(model, optimizer)
    misfit(state)
    other, fresh = parts()
    step(other, fresh)
    before = everything(other, fresh)
    with pytest.raises(CheckpointError) as raised:
        restore(state, other, fresh)
    whole = f"checkpoint_does_not_match(mismatches=backup.{problem}, more=)"
    assert str(raised.value) == f"backup.{whole if problem else 'checkpoint_of_a_run()'}"
    assert everything(other, fresh) == before


def test_parameters_in_other_groups_do_not_fit() -> None:
    model, optimizer = parts(num_groups=2)
    step(model, optimizer)
    with pytest.raises(CheckpointError):
        restore(saved(model, optimizer), *parts())


def test_an_optimizer_that_has_done_no_step_fits() -> None:
    model, optimizer = parts()
    other, fresh = parts()
    step(other, fresh)
    restore(saved(model, optimizer), other, fresh)
    assert everything(other, fresh) == everything(model, optimizer)


@pytest.mark.parametrize("num_more", [0, 1])
def test_so_many_misfits_are_named_and_the_others_counted(num_more: int) -> None:
    model, optimizer = parts()
    state = saved(model, optimizer)
    for number in range(MAX_LISTED + num_more):
        change(state, f"other.{number:02d}", torch.ones(1))
    with pytest.raises(CheckpointError) as caught:
        restore(state, model, optimizer)
    named = [
        number for number in range(MAX_LISTED + 1) if f"other.{number:02d}" in str(caught.value)
    ]
    assert named == list(range(MAX_LISTED))
    assert str(caught.value).startswith("backup.checkpoint_does_not_match(")
    assert ("… and 1 more" in str(caught.value)) == bool(num_more)


def test_what_json_has_not_is_refused() -> None:
    model, optimizer = parts()
    for value in (object(), float("nan"), {1, 2}):
        with pytest.raises(ValueError, match=r"backup\.state_cannot_be_stored"):
            capture(model, optimizer, {"value": value})
