"""Events and hooks: one method for each event, order, misspelt names, saved state."""

from typing import Any

import pytest
import torch

from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import (
    Event,
    Extension,
    Hook,
    HookRunner,
    Observer,
)


def test_there_are_thirteen_events_and_each_has_its_method() -> None:
    methods = {name for name in vars(Hook) if name in set(Event)}
    assert methods == set(Event)
    assert len(Event) == 13


@pytest.mark.parametrize("name", ["step_ended", "after_step", "on_step", "epoch_begin_start"])
def test_a_misspelt_event_fails_when_the_class_is_defined(name: str) -> None:
    if name == "step_ended":  # reads like an ordinary helper: cannot be told from one
        type("Fine", (Observer,), {name: lambda self, state: None})
        return
    with pytest.raises(TypeError, match=f"{name} is no event"):
        type("Misspelt", (Observer,), {name: lambda self, state: None})


def recorder(base: type[Hook], label: str, calls: list[str]) -> Hook:
    def record(self: Hook, state: TrainingState) -> None:
        calls.append(label)

    return type(label, (base,), {"step_end": record})()


def test_extensions_run_before_observers_each_in_their_order() -> None:
    calls: list[str] = []
    hooks = [
        recorder(Observer, "first_observer", calls),
        recorder(Extension, "first_extension", calls),
        recorder(Observer, "second_observer", calls),
        recorder(Extension, "second_extension", calls),
    ]
    HookRunner(hooks).fire(Event.STEP_END, TrainingState(torch.nn.Linear(1, 1)))
    assert calls == ["first_extension", "second_extension", "first_observer", "second_observer"]


class Counter(Observer):
    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.count = saved["count"]


def test_the_state_of_hooks_travels_by_name() -> None:
    counter = Counter()
    counter.count = 3
    saved = HookRunner([counter, Observer()]).state_dict()
    assert saved == {"Counter": {"count": 3}}
    fresh = Counter()
    HookRunner([fresh]).load_state_dict(saved)
    assert fresh.count == 3


def test_two_hooks_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=r"training\.duplicate_hook_names\(names=\['Counter'\]\)"):
        HookRunner([Counter(), Counter()])
