"""When the loop saves besides its configured rhythm, and what a checkpoint says of itself."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.backup.format.store import Store
from infrastructure.core.errors import NothingLearnedError, StorageError
from infrastructure.training.checkpoints.save_schedule import SaveSchedule
from infrastructure.training.core.state import StopReason, TrainingState
from infrastructure.training.distributed.group import Group
from infrastructure.training.extensions.extension_hooks import Extension, Observer
from tests.training.toy_training import Training

QUIET: dict[str, Any] = {"checkpoint_interval": None, "validation_frequency": 2}


class Clock:
    """A clock that a step takes ten seconds of."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Doing(Observer):
    """Does something after one step."""

    def __init__(self, step: int, action: Callable[[TrainingState], None]) -> None:
        self.step = step
        self.action = action

    def step_end(self, state: TrainingState) -> None:
        if state.step == self.step:
            self.action(state)


class Ticking(Observer):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def step_end(self, state: TrainingState) -> None:
        self.clock.now += 10.0


def manifests(directory: Path) -> list[tuple[int, str, float | None]]:
    """Of all checkpoints but the one that a training begins with."""
    store = Store(directory)
    read = [store.read(name) for name in reversed(store.versions())]
    return [(m.step, m.kind, m.score) for m in read if m.step > 0]


def training_with(
    directory: Path, schedule: SaveSchedule, *hooks: Observer, **settings: Any
) -> Any:
    training = Training(directory, hooks=hooks, **{**QUIET, **settings})
    training.checkpointer.schedule = schedule
    return training


def test_a_checkpoint_names_its_kind_and_its_score(tmp_path: Path) -> None:
    training = Training(tmp_path, checkpoint_frequency=3, validation_frequency=6, num_epochs=3)
    training.run()
    assert manifests(tmp_path) == [
        (3, "scheduled", None),
        (6, "scheduled", 1.0),
        (9, "scheduled", None),
        (12, "scheduled", 1.0),
    ]


def test_a_save_is_noted_with_its_step_and_the_seconds_it_took(tmp_path: Path) -> None:
    training = Training(tmp_path, num_epochs=2)
    noted: list[tuple[int, float]] = []
    training.checkpointer.schedule.note_save = lambda *save: noted.append(save)  # type: ignore
    training.run()
    assert [step for step, _ in noted] == [0, 4, 8]
    assert all(isinstance(seconds, float) for _, seconds in noted)


class Deciding(Extension):
    """Decides something by a clock before the second epoch's first step."""

    def epoch_start(self, state: TrainingState) -> None:
        state.must_save |= state.position.epoch == 1


def test_what_a_clock_decides_before_an_epoch_is_saved_before_its_first_step(
    tmp_path: Path,
) -> None:
    Training(tmp_path, hooks=[Deciding()], **QUIET, num_epochs=2).run()
    assert [step for step, _, _ in manifests(tmp_path)] == [4, 8]


def test_by_time_without_any_rhythm(tmp_path: Path) -> None:
    clock = Clock()
    training_with(tmp_path, SaveSchedule(40, clock=clock), Ticking(clock)).run()
    assert [step for step, _, _ in manifests(tmp_path)] == [4, 8, 12]


def test_saving_by_time_changes_nothing_else(tmp_path: Path) -> None:
    clock = Clock()
    undisturbed = Training(log_frequency=5, **QUIET).run()
    saving = training_with(
        tmp_path, SaveSchedule(10, clock=clock), Ticking(clock), log_frequency=5
    ).run()
    assert len(manifests(tmp_path)) == 12
    assert torch.equal(saving.weights, undisturbed.weights)
    assert str(saving.recorder.losses) == str(undisturbed.recorder.losses)  # NaN equals itself


def test_a_touched_file(tmp_path: Path) -> None:
    request = tmp_path / "save_now"
    touch = Doing(5, lambda state: request.touch())
    training_with(tmp_path, SaveSchedule(request=request), touch).run()
    assert manifests(tmp_path) == [(5, "manual", None), (12, "scheduled", 1.0)]
    assert not request.exists()


def test_the_deadline_saves_and_stops(tmp_path: Path) -> None:
    clock = Clock()
    schedule = SaveSchedule(deadline_seconds=100, clock=clock)
    stopped = training_with(tmp_path, schedule, Ticking(clock)).run()
    assert stopped.state.stop_reason is StopReason.DEADLINE
    assert stopped.state.stop_message == "run.deadline_near()"
    assert stopped.state.is_interrupted
    assert clock.now < 100
    assert manifests(tmp_path) == [(stopped.state.step, "stopped", None)]
    resumed = Training(**QUIET).resume(stopped.checkpoints.newest())
    assert torch.equal(resumed.weights, Training(**QUIET).run().weights)


@pytest.mark.parametrize("at_epoch_end", [True, False])
def test_an_evaluation_is_broken_off_and_done_again(tmp_path: Path, at_epoch_end: bool) -> None:
    """SIGTERM comes while the held-out data is being measured."""
    step = 4 if at_epoch_end else 6
    settings = {"checkpoint_interval": None, "validation_frequency": step}
    training = Training(tmp_path, **settings)
    num_measured = 0

    def evaluate() -> dict[str, float]:
        nonlocal num_measured
        num_measured += 1
        torch.rand(3)  # whatever it draws must not matter
        training.state.interrupt("ended from outside (SIGTERM)")
        training.loop.poll(training.state)
        raise AssertionError("the evaluation goes on")

    training.loop.evaluate = evaluate
    with pytest.raises(KeyboardInterrupt, match="ended from outside"):
        training.run()
    assert num_measured == 1
    assert manifests(tmp_path) == [(step, "stopped", None)]
    resumed = Training(**settings).resume(training.checkpoints.newest())
    undisturbed = Training(**settings).run()
    assert resumed.recorder.events[:2] == ["train_start", "step_end"]
    assert resumed.recorder.events.count("eval_end") == undisturbed.recorder.events.count(
        "eval_end"
    )
    assert torch.equal(resumed.weights, undisturbed.weights)


def test_a_long_evaluation_saves_the_steps_before_it(tmp_path: Path) -> None:
    clock = Clock()
    settings = {"checkpoint_interval": None, "validation_frequency": 8}
    training = training_with(tmp_path, SaveSchedule(60, clock=clock), **settings)

    def evaluate() -> dict[str, float]:
        for _ in range(5):
            clock.now += 50.0
            torch.rand(3)
            training.loop.poll(training.state)
        return {"eval_loss": 1.0}

    training.loop.evaluate = evaluate
    random_before = torch.get_rng_state()
    training.run()
    undisturbed = Training(**settings)
    undisturbed.loop.evaluate = lambda: (torch.rand(15), {"eval_loss": 1.0})[1]
    torch.set_rng_state(random_before)
    undisturbed.run()
    assert torch.equal(training.weights, undisturbed.weights)
    during = training.checkpoints.checkpoints()[1]
    assert manifests(tmp_path)[0][:2] == (8, "scheduled")
    resumed = Training(**settings)
    resumed.loop.evaluate = lambda: (torch.rand(15), {"eval_loss": 1.0})[1]
    resumed.resume(during)
    assert torch.equal(resumed.weights, undisturbed.weights)


def test_while_data_or_gradients_are_prepared_a_step_may_be_broken_off_the_first_one_too() -> None:
    training = Training(max_steps=2)
    loss, batches = training.adapter.compute_loss, training.source.train_batches
    allowed: list[bool] = []

    def prepare(*position: int) -> Iterator[Sequence[int]]:
        allowed.append(training.loop.may_break_off)
        yield from batches(*position)

    def compute(model: torch.nn.Module, batch: dict[str, Any]) -> Any:
        allowed.append(training.loop.may_break_off)
        return loss(model, batch)

    training.source.train_batches = prepare  # type: ignore[assignment, method-assign]
    training.step.strategy.compute_loss = compute
    training.run()
    assert allowed == [True] * 7


def test_while_other_ranks_come_the_training_may_be_broken_off() -> None:
    """Nothing of it has begun, and a rank may never come."""
    training = Training(max_steps=2)
    join, allowed = training.loop.join, []
    training.loop.join = lambda: (allowed.append(training.loop.may_break_off), join())[1]
    training.run()
    assert allowed == [True]


def test_the_last_save_is_not_broken_off(tmp_path: Path) -> None:
    """A save may take longer than the patience of whoever stops the training."""
    training = Training(tmp_path, **QUIET)
    save, allowed = training.checkpointer.begin, []

    def slow_save(state: TrainingState, kind: str) -> None:
        allowed.append((state.step, kind, training.loop.may_break_off))
        save(state, kind)

    def stopped_while_evaluating() -> dict[str, float]:
        allowed.append((training.state.step, "evaluating", training.loop.may_break_off))
        training.state.interrupt("ended from outside (SIGTERM)")
        return training.loop.poll(training.state) or {}

    training.checkpointer.begin = slow_save
    training.loop.evaluate = stopped_while_evaluating
    with pytest.raises(KeyboardInterrupt):
        training.run()
    assert allowed == [(0, "scheduled", False), (2, "evaluating", True), (2, "stopped", False)]
    assert not training.loop.may_break_off


def test_where_nothing_is_learned_the_last_step_is_saved_once(tmp_path: Path) -> None:
    def stand_still(state: TrainingState) -> None:
        state.interrupt("planted", StopReason.NOTHING_LEARNED)

    training = Training(tmp_path, hooks=[Doing(5, stand_still)], **QUIET)
    with pytest.raises(NothingLearnedError, match=r"^planted$"):
        training.run()
    assert manifests(tmp_path) == [(5, "stopped", None)]
    assert training.recorder.events[-2:] == ["error", "train_end"]


class Noting(Group):
    """What a loop does while others wait for it."""

    def __init__(self) -> None:
        self.num_noted, self.depth = 0, 0

    def note_progress(self) -> None:
        self.num_noted += 1

    @contextmanager
    def busy(self) -> Iterator[None]:
        self.depth += 1
        yield
        self.depth -= 1


def test_only_an_interrupt_ends_an_evaluation_early() -> None:
    training = Training()
    training.state.stop("nothing gets better")
    training.loop.poll(training.state)
    training.state.interrupt("Ctrl-C")
    with pytest.raises(KeyboardInterrupt, match="nothing gets better"):
        training.loop.poll(training.state)


@pytest.mark.parametrize("kind", ["manual", "deadline"])
def test_in_a_long_evaluation_a_request_and_the_deadline_count(tmp_path: Path, kind: str) -> None:
    clock, request, group = Clock(), tmp_path / "save_now", Noting()
    schedule = SaveSchedule(deadline_seconds=1000, request=request, clock=clock)
    folder = tmp_path / "store"
    settings = {"checkpoint_interval": None, "validation_frequency": 8}
    training = training_with(folder, schedule, max_steps=8, **settings)
    training.loop.join = lambda: group

    def evaluate() -> dict[str, float]:
        before = group.num_noted
        if kind == "manual":
            request.touch()
        else:
            clock.now = 999.0
        training.loop.poll(training.state)
        assert group.num_noted == before + 1
        return {"eval_loss": 1.0}

    training.loop.evaluate = evaluate
    if kind == "manual":
        training.run()
        assert manifests(folder) == [(8, "manual", None), (8, "scheduled", 1.0)]
        return
    with pytest.raises(KeyboardInterrupt):
        training.run()
    assert training.state.stop_reason is StopReason.DEADLINE
    assert manifests(folder) == [(8, "stopped", None)]


def test_while_it_saves_the_others_wait_longer(tmp_path: Path) -> None:
    group, depths = Noting(), []
    training = Training(tmp_path, max_steps=1)
    training.loop.join = lambda: group
    begin, collect = training.checkpointer.begin, training.checkpointer.collect
    training.checkpointer.begin = lambda *a: (depths.append(group.depth), begin(*a))[1]
    training.checkpointer.collect = lambda *a: (depths.append(group.depth), collect(*a))[1]
    training.run()
    assert depths
    assert set(depths) == {1}


def test_what_cannot_be_rescued_does_not_hide_why_it_had_to_be(tmp_path: Path) -> None:
    def fail(state: TrainingState) -> None:
        raise OSError("planted")

    training = Training(tmp_path, hooks=[Doing(3, fail)], **QUIET)
    begin = training.checkpointer.begin

    def refuse(state: TrainingState, kind: str) -> None:
        if state.step:
            raise StorageError("the disk is full")
        begin(state, kind)

    training.checkpointer.begin = refuse
    with pytest.raises(OSError, match="planted") as caught:
        training.run()
    assert any("the disk is full" in note for note in caught.value.__notes__)


def test_a_training_that_goes_on_saves_as_long_after_it_began_as_any(tmp_path: Path) -> None:
    """What loading took is no reason to save at once what is saved already."""
    clock = Clock()
    first = training_with(tmp_path, SaveSchedule(35, clock=clock), max_steps=4).run()
    again = training_with(tmp_path / "again", SaveSchedule(35, clock=clock), Ticking(clock))
    again.checkpointer.start_is_saved = True
    clock.now += 1000.0
    again.resume(first.checkpoints.newest())
    assert [step for step, _, _ in manifests(tmp_path / "again")] == [8, 12]


class Uncopied(Observer):
    """Cannot be copied once an epoch has ended: the state after that epoch is never complete."""

    def __init__(self, fails: bool = True) -> None:
        self.fails, self.has_ended = fails, False

    def epoch_end(self, state: TrainingState) -> None:
        self.has_ended = True

    def state_dict(self) -> dict[str, object]:
        if self.has_ended and self.fails:
            raise OSError("no memory for a copy")
        return {}


def test_a_state_that_cannot_be_copied_after_an_epoch_leaves_a_checkpoint_that_resumes(
    tmp_path: Path,
) -> None:
    whole = Training().run()
    broken = Training(tmp_path, hooks=[Uncopied()], **QUIET)
    with pytest.raises(OSError, match="no memory for a copy"):
        broken.run()
    assert manifests(tmp_path) == [(4, "emergency", 1.0)]
    resumed = Training(hooks=[Uncopied(fails=False)]).resume(broken.checkpoints.newest())
    assert resumed.state.step == whole.state.step
    assert torch.equal(resumed.weights, whole.weights)


def test_failed_saves_are_counted_in_a_row(tmp_path: Path) -> None:
    """A disk that refuses now and then, far more often than is tolerated at once."""
    training = Training(tmp_path, max_steps=12, checkpoint_frequency=1)
    begin = training.checkpointer.begin

    def refuse_two_of_three(state: TrainingState, kind: str) -> None:
        if state.step % 3:
            raise StorageError("the disk is full")
        begin(state, kind)

    training.checkpointer.begin = refuse_two_of_three
    training.run()
    assert training.state.step == 12
    assert training.checkpointer.failures.count == 0
