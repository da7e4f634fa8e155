"""States of optimizers and schedulers become JSON and come back as they were."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import infrastructure
from infrastructure.core.exact_json import MARK, from_json, to_json


@pytest.mark.parametrize(
    "value",
    [
        {"betas": (0.9, 0.999), "lr": 0.1, "foreach": None, "fused": True, "params": [0, 1]},
        {"milestones": Counter({3: 1, 7: 2}), "mode_worse": math.inf, "least": -math.inf},
        {MARK: "somebody else's", "nested": [({"a": (1,)},)]},
        {},
        {3: {"x": (math.inf, [None])}, (1, 2): 3, None: {True: -math.inf}},
        {"__tuple__": [{"a": (math.inf, {"__tuple__": 1})}]},
    ],
)
def test_what_a_state_is_made_of_comes_back(value: dict[Any, Any]) -> None:
    for tuple_key in (None, "__tuple__"):
        written = json.dumps(to_json(value, "it", tuple_key), allow_nan=False)
        assert from_json(json.loads(written), tuple_key) == value


def test_the_format_page_shows_what_is_written() -> None:
    page = (Path(infrastructure.__file__).parent / "backup/FORMAT.md").read_text()
    assert json.dumps(to_json(math.inf, "it")) in page
    assert to_json((1,), "it") == {"#": ["tuple", [1]]}
    assert to_json({1: 2.5}, "it") == {"#": ["mapping", [[1, 2.5]]]}
    for form in ('{"#": ["tuple", [items…]]}', '{"#": ["mapping", [[key, value]…]]}'):
        assert form in page


def test_a_number_that_is_none_comes_back() -> None:
    assert math.isnan(from_json(json.loads(json.dumps(to_json(math.nan, "it"), allow_nan=False))))


@pytest.mark.parametrize("scheduler", ["StepLR", "MultiStepLR", "OneCycleLR", "ReduceLROnPlateau"])
def test_a_scheduler_goes_on_from_it_as_from_its_own_state(scheduler: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "StepLR": {"step_size": 2},
        "MultiStepLR": {"milestones": [2, 4]},
        "OneCycleLR": {"max_lr": 0.5, "total_steps": 20},
        "ReduceLROnPlateau": {"patience": 1},
    }

    def make() -> tuple[Any, torch.optim.Optimizer]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        return getattr(torch.optim.lr_scheduler, scheduler)(
            optimizer, **options[scheduler]
        ), optimizer

    def step(it: Any, optimizer: torch.optim.Optimizer) -> float:
        optimizer.step()
        it.step(*([1.0] if scheduler == "ReduceLROnPlateau" else []))
        return float(optimizer.param_groups[0]["lr"])

    first, own = make()
    for _ in range(3):
        step(first, own)
    state = json.loads(json.dumps(to_json(first.state_dict(), "it"), allow_nan=False))
    second, other = make()
    second.load_state_dict(from_json(state))
    other.load_state_dict(own.state_dict())
    assert [step(second, other) for _ in range(5)] == [step(first, own) for _ in range(5)]


def test_what_cannot_be_kept_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"value_not_storable\(where=the scheduler, type=Tensor\)"):
        to_json({"lr": [torch.zeros(1)]}, "the scheduler")


def test_a_tuple_is_written_with_the_key_of_its_format() -> None:
    assert to_json((1, [2, (3,)]), "it", "key") == {"key": [1, [2, {"key": [3]}]]}
    assert to_json((1, [2]), "it") == {MARK: ["tuple", [1, [2]]]}
