"""Events and hooks: one method for each event, order, misspelt names, saved state."""

from pathlib import Path
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


@pytest.mark.parametrize(
    "name",
    ["step_ended", "after_step", "before_step", "on_step", "an_end", "a_start", "model_saved"],
)
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


def test_an_extension_without_methods_changes_nothing(tmp_path: Path) -> None:
    plain, model = Extension(), torch.nn.Linear(1, 1)
    assert (plain.requires, plain.after) == ((), ())
    assert (plain.adds_weights, plain.is_of_first_rank) == (False, False)
    assert plain.first_phases(model) == []
    assert plain.recorders(tmp_path, print) == []
    assert plain.probes() == {}
    assert plain.epoch_lengths() is None
    assert plain.seconds_beside_steps() == 0.0
    assert plain.state_dict() == {}
    assert plain.name == "Extension"


class FailingError(Exception):
    """The error that a hook raises."""


class Failing(Observer):
    """Fails at each of its events."""

    def error(self, state: TrainingState) -> None:
        raise FailingError("at an error")

    def train_end(self, state: TrainingState) -> None:
        raise FailingError("at the end")


class AlsoFailing(Failing):
    """A second one, with a name of its own."""


def test_every_hook_is_called_although_one_fails() -> None:
    calls: list[str] = []

    class Last(Observer):
        """Notes its calls."""

        def train_end(self, state: TrainingState) -> None:
            calls.append("end")

        def error(self, state: TrainingState) -> None:
            calls.append("error")

    runner = HookRunner([Failing(), AlsoFailing(), Last()])
    state = TrainingState(torch.nn.Linear(1, 1))
    with pytest.raises(FailingError, match="at the end"):
        runner.fire_to_all(Event.TRAIN_END, state)
    state.error = RuntimeError("the first")
    runner.fire_to_all(Event.ERROR, state)
    assert calls == ["end", "error"]
    first, second = state.error.__notes__
    assert first.startswith("Failing.error failed too: ")
    assert second.startswith("AlsoFailing.error failed too: ")
    assert "at an error" in first


def test_only_extensions_hear_of_a_repeated_and_a_finished_step() -> None:
    calls: list[str] = []

    class Listening(Extension):
        """Notes what is called."""

        def gradients_forgotten(self) -> None:
            calls.append("forgotten")

        def weights_updated(self) -> None:
            calls.append("updated")

    runner = HookRunner([Counter(), Listening()])
    runner.gradients_forgotten()
    assert calls == ["forgotten"]
    runner.weights_updated()
    assert calls == ["forgotten", "updated"]
