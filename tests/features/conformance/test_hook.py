"""Our hooks keep the contract, and a hook with a defect does not."""

import io
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.deployment.forecast import PeakObserver
from infrastructure.features.conformance.hook import HookSuite
from infrastructure.features.stackwise.training.observers import PhaseRecords
from infrastructure.monitoring.training_monitor import TrainingMonitor
from infrastructure.training.core.precision import Precision
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Event, Extension, Hook, Observer
from infrastructure.training.metrics.metrics_logger import MetricsLogger
from infrastructure.training.metrics.progress import Progress
from infrastructure.training.metrics.sinks import make_sinks
from infrastructure.training.observers.early_stopping import EarlyStopping
from infrastructure.training.observers.monitoring_setup import (
    MonitorObserver,
    RunLogObserver,
)
from infrastructure.training.observers.run_observers import (
    ErrorsObserver,
    MetricsObserver,
    ProgressObserver,
    ReportObserver,
)
from infrastructure.training.sizing.memory_extension import MemoryExtension, MemoryLimits
from tests.features.conformance.planted import failure, without_defect

CPU = torch.device("cpu")


class TestEarlyStopping(HookSuite):
    def make(self, folder: Path) -> Hook:
        return EarlyStopping(patience=2)


class TestMetrics(HookSuite):
    def make(self, folder: Path) -> Hook:
        return MetricsObserver(MetricsLogger(make_sinks(["jsonl", "csv"], folder)))


class TestErrors(HookSuite):
    def make(self, folder: Path) -> Hook:
        return ErrorsObserver(folder)


class TestReport(HookSuite):
    def make(self, folder: Path) -> Hook:
        return ReportObserver(folder)


class TestProgress(HookSuite):
    def make(self, folder: Path) -> Hook:
        return ProgressObserver(lambda total, step: Progress(total, step, io.StringIO(), "lines"))


class TestMonitor(HookSuite):
    def make(self, folder: Path) -> Hook:
        return MonitorObserver(TrainingMonitor(), None, Precision("fp32", "cpu"))


class TestRunLog(HookSuite):
    def make(self, folder: Path) -> Hook:
        return RunLogObserver(lambda record: None)


class TestPhaseRecords(HookSuite):
    def make(self, folder: Path) -> Hook:
        return PhaseRecords(folder, lambda: None)


class TestPeak(HookSuite):
    def make(self, folder: Path) -> Hook:
        return PeakObserver()


class TestMemory(HookSuite):
    def make(self, folder: Path) -> Hook:
        return MemoryExtension(MemoryLimits(), CPU)


# Defects, each in a hook that is else sound.


class Counts(Observer):
    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def step_end(self, state: TrainingState) -> None:
        self.seen["steps"] = self.seen.get("steps", 0) + 1
        if self.seen["steps"] >= 5:
            state.stop("five steps")

    def state_dict(self) -> dict[str, Any]:
        return {"seen": dict(self.seen)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.seen = dict(saved["seen"])


class SavesTensors(Counts):
    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "mean": torch.zeros(2)}


class SavesNumbersAsKeys(Counts):
    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "by step": {1: "a"}}


class ForgetsItsState(Counts):
    def load_state_dict(self, saved: dict[str, Any]) -> None: ...


class BeginsAnewAtTheStart(Counts):
    def train_start(self, state: TrainingState) -> None:
        self.seen = {}


class RemembersOnlyHalf(Counts):
    """What decides is not in what it saves."""

    steps = 0

    def step_end(self, state: TrainingState) -> None:
        super().step_end(state)
        self.steps += 1
        state.stop_message = "five steps" if self.steps >= 5 else None


class GivesItselfAway(Counts):
    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}


class ChangesWeights(Counts):
    def phase_end(self, state: TrainingState) -> None:
        with torch.no_grad():
            next(state.model.parameters()).mul_(2)


class DrawsNumbers(Counts):
    def eval_end(self, state: TrainingState) -> None:
        torch.rand(1)


class SwitchesModes(Counts):
    def checkpoint_saved(self, state: TrainingState) -> None:
        state.model.eval()


class NeedsMore(Counts):
    def error(self, state: TrainingState) -> None:
        assert isinstance(state.error, ValueError), "planted"


class ExpectsNoEpochEnd(Extension):
    def epoch_end(self, state: TrainingState) -> None:
        raise AssertionError("planted")


class ExpectsNoPhaseEnd(Extension):
    def phase_end(self, state: TrainingState) -> None:
        raise AssertionError("planted")


class ChangesByItsCalls(Extension):
    """Changes the weights by a number that it does not save."""

    calls = 0

    def step_end(self, state: TrainingState) -> None:
        self.calls += 1
        with torch.no_grad():
            next(state.model.parameters()).add_(self.calls)


class Nameless(Counts):
    name = ""


class NamedAnew(Counts):
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.number = next(self.numbers)

    @property
    def name(self) -> str:
        return f"counts-{self.number}"


DEFECTS: list[tuple[type[Hook], str, str]] = [
    (SavesTensors, "test_its_state_is_json", "conformance.state_not_json"),
    (SavesNumbersAsKeys, "test_its_state_is_json", "keys are texts"),
    (ForgetsItsState, "test_its_state_comes_back", "does not take back"),
    (BeginsAnewAtTheStart, "test_its_state_comes_back", "after going on its state is"),
    (RemembersOnlyHalf, "test_its_state_comes_back", "it stops the training for"),
    (GivesItselfAway, "test_what_was_saved_stays_as_it_was", "give a copy"),
    (ChangesWeights, "test_an_observer_changes_nothing", "in phase_end it changes weights"),
    (DrawsNumbers, "test_an_observer_changes_nothing", "random numbers"),
    (SwitchesModes, "test_an_observer_changes_nothing", "modes"),
    (NeedsMore, "test_every_event_may_come_in_the_order_of_the_loop", "planted"),
    (ExpectsNoEpochEnd, "test_every_event_may_come_in_the_order_of_the_loop", "planted"),
    (ExpectsNoPhaseEnd, "test_every_event_may_come_in_the_order_of_the_loop", "planted"),
    (ChangesByItsCalls, "test_its_state_comes_back", "after going on the weights are others"),
    (Nameless, "test_it_has_the_same_name_each_time", "its name is empty"),
    (NamedAnew, "test_it_has_the_same_name_each_time", "its name is"),
]


class TestCounts(HookSuite):
    def make(self, folder: Path) -> Hook:
        return Counts()


class TestOneThatChanges(HookSuite):
    """An extension may."""

    def make(self, folder: Path) -> Hook:
        class Halves(Extension):
            def step_end(self, state: TrainingState) -> None:
                with torch.no_grad():
                    next(state.model.parameters()).mul_(0.5)

        return Halves()


@pytest.mark.parametrize(("kind", "test", "sentence"), DEFECTS)
def test_a_defect_is_seen(kind: type[Hook], test: str, sentence: str, tmp_path: Path) -> None:
    class Suite(HookSuite):
        def make(self, folder: Path) -> Hook:
            return kind()

    message = failure(Suite(), test, tmp_path)
    assert message is not None
    assert sentence in message


@pytest.mark.parametrize("event", [event for event in Event if event is not Event.ERROR])
def test_a_change_in_any_event_is_seen(event: Event, tmp_path: Path) -> None:
    def change(state: TrainingState) -> None:
        torch.rand(1)

    class Suite(HookSuite):
        def make(self, folder: Path) -> Hook:
            hook = Counts()
            setattr(hook, event.value, change)
            return hook

    message = failure(Suite(), "test_an_observer_changes_nothing", tmp_path)
    assert message is not None
    assert f"in {event.value} it changes random numbers" in message


CHANGES: list[tuple[str, Callable[[TrainingState], object]]] = [
    ("what trains", lambda state: next(state.model.parameters()).requires_grad_(False)),
    ("the optimizer", lambda state: state.optimizer.param_groups[0].update(lr=1.0)),  # type: ignore[union-attr]
    ("the position", lambda state: setattr(state, "step", 7)),
    ("the position", lambda state: setattr(state, "micro_batch_size", 7)),
    ("the position", lambda state: setattr(state.position, "epoch", 7)),
    ("its numbers", lambda state: state.metrics.update(mine=1.0)),
    ("its numbers", lambda state: state.evaluation.update(mine=1.0)),
]


@pytest.mark.parametrize(("what", "change"), CHANGES)
def test_a_change_of_anything_is_seen(
    what: str, change: Callable[[TrainingState], object], tmp_path: Path
) -> None:
    class Suite(HookSuite):
        def make(self, folder: Path) -> Hook:
            hook = Counts()
            hook.step_end = change  # type: ignore[method-assign, assignment]
            return hook

    message = failure(Suite(), "test_an_observer_changes_nothing", tmp_path)
    assert message == f"in step_end it changes {what}: be an Extension"


class Plain(Extension):
    """Changes nothing."""


def test_events_come_with_the_numbers_of_the_loop(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    kept: dict[str, Any] = {}

    def note(event: Event, state: TrainingState) -> None:
        seen.append((event.value, state.step))
        weight = next(state.model.parameters())
        kept[event.value] = (
            weight.grad is not None,
            dict(state.metrics),
            dict(state.evaluation),
            (state.evaluated_step, state.total_steps),
        )

    class Suite(HookSuite):
        def make(self, folder: Path) -> Hook:
            hook = Plain()
            for event in Event:
                setattr(hook, event.value, partial(note, event))
            return hook

    suite = Suite()
    assert failure(suite, "test_every_event_may_come_in_the_order_of_the_loop", tmp_path) is None
    before = ("train_start", "phase_start", "epoch_start", "step_start", "after_loss")
    after = ("step_end", "eval_end", "checkpoint_saved", "epoch_end", "phase_end", "error")
    assert seen == [
        *((event, 0) for event in (*before, "after_backward")),
        *((event, 1) for event in (*after, "train_end")),
    ]
    metrics = {"loss": pytest.approx(0.5, abs=0.5), "learning_rate": 1e-3, "tokens": 8.0}
    assert kept["after_loss"] == (False, {}, {}, (-1, 8))
    assert kept["after_backward"] == (True, {}, {}, (-1, 8))
    assert kept["step_end"] == (False, metrics, {}, (-1, 8))
    assert kept["eval_end"] == (False, metrics, {"eval_loss": 2.1}, (1, 8))


def test_each_test_has_a_defect_that_it_sees() -> None:
    assert without_defect(HookSuite, {test for _, test, _ in DEFECTS}) == []
