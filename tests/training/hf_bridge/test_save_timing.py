"""Versions of a Trainer's training: begun, committed, told, and tried again."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.backup.format.store import Store
from infrastructure.core.errors import StorageError, TrainingDivergedError
from infrastructure.training.checkpoints.save_schedule import SaveSchedule
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.core.state import TrainingState
from infrastructure.training.hf_bridge.save_timing import SaveTiming
from infrastructure.training.recovery.save_retry import SaveRetryPolicy
from tests.backup.memory_place import save


class Versions:
    """A store that may refuse; what was begun is committed when it is collected."""

    def __init__(self) -> None:
        self.refuses = self.is_slow = False
        self.begun: list[str] = []
        self.good = Path()

    def begin(self, snapshot: Snapshot, *, kind: str, score: float | None) -> None:
        if self.refuses:
            raise StorageError("the disk is full")
        self.begun.append(kind)

    def save(self, snapshot: Snapshot, *, kind: str, healthy: bool) -> None:
        self.begin(snapshot, kind=kind, score=None)

    def newest(self) -> Path:
        return self.good

    def collect(self, wait: bool) -> list[Path]:
        if self.refuses:
            raise StorageError("the disk is full")
        if self.is_slow and not wait:
            return []
        committed, self.begun = [Path(kind) for kind in self.begun], []
        return committed


@pytest.fixture
def published() -> list[Path]:
    return []


@pytest.fixture
def saver(published: list[Path]) -> Any:
    def take(is_finished: bool) -> Snapshot:
        return Snapshot({"model": {}}, {})

    failures = SaveRetryPolicy(3, clock=lambda: 0.0)
    make: Callable[..., SaveTiming] = SaveTiming  # of stand-ins
    return make(Versions(), SaveSchedule(None, None), failures, take, published.append)


def state() -> TrainingState:
    return TrainingState(torch.nn.Linear(1, 1), step=4)


def test_a_save_that_was_refused_is_made_good_by_the_next(
    saver: Any, published: list[Path]
) -> None:
    saver.versions.refuses = True
    saver.request("scheduled")
    saver.save(state())
    assert (saver.failures.count, published) == (1, [])
    saver.versions.refuses = False
    saver.request("emergency")
    saver.save(state())
    assert saver.failures.count == 1  # it is not committed yet
    saver.collect(state())
    assert (saver.failures.count, published) == (0, [Path("emergency")])


def test_that_a_training_has_diverged_is_reported_from_a_full_disk_too(
    saver: Any, tmp_path: Path
) -> None:
    name = save(Store(tmp_path), 2)
    saver.versions.good = Store(tmp_path).manifest_path(name)
    saver.versions.refuses = True
    saver.take = lambda is_finished: Snapshot({"model": {"w": torch.tensor([math.nan])}}, {})
    saver.request("scheduled")
    with pytest.raises(
        TrainingDivergedError, match=r"trainer\.weights_not_finite.*step=4.*newest=2"
    ):
        saver.save(state())
    assert saver.failures.count == 1


def test_at_the_end_a_refused_version_is_tried_once_more(saver: Any, published: list[Path]) -> None:
    saver.versions.refuses = True
    saver.request("scheduled")
    saver.save(state())
    saver.versions.refuses = False
    saver.finish(state())
    assert (saver.failures.count, published) == (0, [Path("scheduled")])


def test_what_is_due_first_gives_the_kind_and_nothing_due_writes_nothing(saver: Any) -> None:
    saver.save(state())
    assert saver.versions.begun == []
    saver.request("stopped")
    saver.request("scheduled")
    saver.save(state())
    saver.save(state())
    assert saver.versions.begun == ["stopped"]


def test_a_version_that_the_disk_refuses_while_it_is_written_stops_nobody(
    saver: Any, published: list[Path]
) -> None:
    saver.request("scheduled")
    saver.save(state())
    saver.versions.refuses = True
    saver.collect(state())
    assert (saver.failures.count, published) == (1, [])


@pytest.mark.parametrize("was_refused", [False, True])
def test_at_the_end_what_is_still_being_written_is_waited_for(
    was_refused: bool, saver: Any, published: list[Path]
) -> None:
    saver.versions.is_slow, saver.versions.refuses = True, was_refused
    saver.request("scheduled")
    saver.save(state())
    saver.versions.refuses = False
    saver.finish(state())
    assert (saver.failures.count, published) == (0, [Path("scheduled")])


def test_by_the_clock_a_version_is_requested_only_where_one_is_due(saver: Any) -> None:
    saver.request_by_clock(4)
    assert saver.due is None
    saver.schedule.kind_due = lambda step: "manual"
    saver.request_by_clock(4)
    assert saver.due == "manual"


class Noted(Versions):
    """Notes with what each version was begun."""

    def __init__(self) -> None:
        super().__init__()
        self.facts: list[tuple[object, ...]] = []

    def begin(self, snapshot: Snapshot, *, kind: str, score: float | None) -> None:
        super().begin(snapshot, kind=kind, score=score)
        self.facts.append((kind, score))

    def save(self, snapshot: Snapshot, *, kind: str, healthy: bool) -> None:
        self.facts.append((kind, healthy))


@pytest.mark.parametrize(
    ("is_ending", "is_interrupted", "is_finished"),
    [(None, False, False), (False, False, False), (True, False, True), (True, True, False)],
)
def test_a_version_is_of_a_finished_training_where_nothing_more_is_to_come(
    saver: Any, is_ending: bool | None, is_interrupted: bool, is_finished: bool
) -> None:
    taken: list[bool] = []

    def take(is_finished: bool) -> Snapshot:
        taken.append(is_finished)
        return Snapshot({"model": {}}, {})

    saver.take = take
    if is_ending is not None:  # else as it begins
        saver.is_ending = is_ending
    at = state()
    at.is_interrupted, at.total_steps = is_interrupted, at.step + 1
    saver.request("scheduled")
    saver.save(at)
    assert taken == [is_finished]


def test_the_score_of_exactly_these_weights_goes_along(saver: Any) -> None:
    saver.versions, at = Noted(), state()
    at.evaluation, at.evaluated_step = {"eval_loss": 1.25}, at.step
    saver.request("manual")
    saver.save(at)
    at.evaluated_step = at.step - 1
    saver.request("scheduled")
    saver.save(at)
    assert saver.versions.facts == [("manual", 1.25), ("scheduled", None)]


def test_weights_that_are_no_numbers_are_kept_as_evidence(saver: Any, tmp_path: Path) -> None:
    saver.versions = Noted()
    saver.versions.good = Store(tmp_path).manifest_path(save(Store(tmp_path), 2))
    saver.take = lambda is_finished: Snapshot({"model": {"w": torch.tensor([math.inf])}}, {})
    saver.request("scheduled")
    with pytest.raises(TrainingDivergedError):
        saver.save(state())
    assert saver.versions.facts == [("emergency", False)]


def test_the_first_version_is_what_the_training_began_with(saver: Any) -> None:
    for kind in ("manual", "scheduled"):
        saver.request(kind)
        saver.save(state())
        saver.collect(state())
    assert saver.first == Path("manual")
    saver.first = Path("before")
    saver.request("scheduled")
    saver.save(state())
    saver.collect(state())
    assert saver.first == Path("before")


def test_a_refused_version_is_due_again_by_the_clock(saver: Any) -> None:
    saver.versions.refuses = True
    saver.request("manual")
    saver.save(state())
    saver.failures.clock = lambda: 1e9
    saver.request_by_clock(5)
    assert saver.due == "scheduled"


def test_what_a_save_took_is_noted_for_its_schedule(saver: Any) -> None:
    noted: list[tuple[int, float]] = []
    saver.schedule.note_save = lambda step, seconds: noted.append((step, seconds))
    saver.save(state())
    assert noted == []
    saver.request("scheduled")
    saver.save(state())
    ((step, seconds),) = noted
    assert step == 4
    assert 0 <= seconds < 60


def test_the_newest_committed_version_decides_what_is_kept(saver: Any, tmp_path: Path) -> None:
    assert saver.kept_step == 0
    store = Store(tmp_path)
    first, second = (store.manifest_path(save(store, step)) for step in (2, 5))
    parts = (saver.versions, saver.schedule, saver.failures, saver.take, saver.announce)
    resumed = SaveTiming(*parts, first)
    assert resumed.kept_step == 2
    saver.versions.collect = lambda wait: [second]
    resumed.collect(state())
    assert (resumed.kept_step, resumed.first) == (5, first)
    second.unlink()
    assert resumed.kept_step == -1
