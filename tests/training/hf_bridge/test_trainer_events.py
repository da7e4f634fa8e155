"""The events of a Trainer, in their order, as those of a training, and what each leaves behind."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.backup.format.store import Store
from infrastructure.core.errors import StorageError, TrainingDivergedError
from infrastructure.training.checkpoints.save_schedule import SaveSchedule
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.core.state import StopReason, TrainingState
from infrastructure.training.extensions.extension_hooks import Event
from infrastructure.training.hf_bridge import trainer_events
from infrastructure.training.hf_bridge.trainer_events import (
    FIRST_ROWS,
    EvaluatedRows,
    SaveTiming,
    TrainerEvents,
)
from infrastructure.training.recovery.save_retry import SaveRetryPolicy
from tests.backup.memory_place import save


class Saves:
    """Notes what is due when it is asked to save."""

    def __init__(self) -> None:
        self.due: str | None = None
        self.is_ending = False
        self.saved: list[tuple[Any, ...]] = []
        self.num_finished = 0
        self.by_clock: list[int] = []
        self.schedule = SimpleNamespace(deadline_is_near=False)

    def request(self, kind: str) -> None:
        self.due = self.due or kind

    def request_by_clock(self, step: int) -> None:
        self.by_clock.append(step)

    def save(self, state: TrainingState) -> None:
        kind, self.due = self.due, None
        if kind is not None:
            self.saved.append((kind, state.step, self.is_ending))

    def collect(self, state: TrainingState) -> None: ...

    def finish(self, state: TrainingState) -> None:
        self.num_finished += 1


class Carried:
    seconds_before = 0.0

    def __init__(self) -> None:
        self.awaits_evaluation = False
        self.num_epochs = self.num_ends = 0

    def epoch_begins(self) -> None:
        self.num_epochs += 1

    def steps_end(self, awaits_evaluation: bool) -> None:
        self.num_ends += 1
        self.awaits_evaluation = awaits_evaluation


class World:
    """The events of a training of 3 epochs of 5 batches, 2 of which make a step of 6 examples."""

    def __init__(
        self, *, needs_own: bool = False, length: int | None = 5, num_tokens: int = 0
    ) -> None:
        self.fired: list[str] = []
        self.saves, self.carried = Saves(), Carried()
        self.trainer = SimpleNamespace(
            global_step=0, epoch=0.0, num_input_tokens_seen=0, log_history=[{}]
        )
        self.parts: Any = SimpleNamespace(
            device=torch.device("cpu"),
            optimizer=torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1),
            args=SimpleNamespace(gradient_accumulation_steps=2),
            state=self.trainer,
            needs_own_checkpoints=needs_own,
            global_batch_size=6,
        )
        self.state = TrainingState(torch.nn.Linear(1, 1))
        self.state.total_steps = 99
        self.state.num_tokens = num_tokens
        self.stops_at = ""
        loader: Any = None if length is None else range(length)
        hooks: Any = SimpleNamespace(fire=self.fire)
        saves: Any = self.saves
        carried: Any = self.carried
        self.events = TrainerEvents(self.parts, loader, self.state, hooks, saves, carried)

    def fire(self, event: Event, state: TrainingState) -> None:
        self.fired.append(event.value)
        if event.value == self.stops_at:
            state.stop("enough")

    def step(self, **flags: bool) -> Any:
        """A step with its end; the control that the Trainer has by then."""
        flags_by_default = dict.fromkeys(("should_log", "should_evaluate", "should_save"), False)
        control = SimpleNamespace(should_training_stop=False, **{**flags_by_default, **flags})
        self.events.step_begins()
        self.events.micro_batch_done()
        self.events.gradients_are_final()
        self.trainer.global_step += 1
        self.events.step_ends(control)
        return control


NOTHING: Any = SimpleNamespace(should_training_stop=False, should_save=False, should_evaluate=False)


def test_a_step_has_its_events_and_counts_its_examples() -> None:
    world = World()
    world.events.epoch_begins()
    assert world.carried.num_epochs == 1
    world.trainer.num_input_tokens_seen = 40
    world.step()
    assert world.fired == [
        *("epoch_start", "step_start", "after_loss", "after_loss", "after_backward", "step_end")
    ]
    assert (world.state.step, world.state.num_examples, world.state.num_tokens) == (1, 6, 40)
    assert world.state.position.example == 6
    assert len(world.state.batch) == 6
    world.trainer.num_input_tokens_seen = 30  # which TRL counts itself
    world.step()
    assert (world.state.num_examples, world.state.num_tokens) == (12, 40)
    assert world.saves.by_clock == [1, 2]


def test_a_step_that_is_to_be_logged_ends_with_its_log() -> None:
    world = World()
    control = world.step(should_log=True)
    assert world.fired[-1] == "after_backward"
    logs = {"loss": 1.5, "learning_rate": 0.05, "num_tokens": 60.0, "epoch": 0.5}
    world.events.logged(logs, control)
    assert world.fired[-1] == "step_end"
    assert world.events.has_logged
    assert (world.state.loss, world.state.metrics["learning_rate"]) == (1.5, 0.1)
    assert "epoch" not in world.state.metrics
    assert (world.state.num_tokens, world.state.metrics["tokens"]) == (60, 60.0)
    per_second = world.state.metrics["tokens_per_second"]
    assert per_second == pytest.approx(60 / max(world.state.metrics["seconds"], 1e-9))
    world.events.logged({"loss": 9.0}, control)  # of no step
    assert (world.state.loss, world.fired.count("step_end")) == (1.5, 1)
    world.step()
    assert world.state.metrics == {}
    world.events.logged({"loss": 1.0}, world.step(should_log=True))
    assert "learning_rate" not in world.state.metrics


def test_the_first_speed_after_a_resume_counts_this_session_s_tokens() -> None:
    world = World(num_tokens=1_000)
    control = world.step(should_log=True)
    world.events.logged({"loss": 1.5, "num_tokens": 1_060.0}, control)
    seconds = max(world.state.metrics["seconds"], 1e-9)
    assert world.state.metrics["tokens_per_second"] * seconds == pytest.approx(60)
    control = world.step(should_log=True)
    world.events.logged({"loss": 1.5, "num_tokens": 1_100.0}, control)
    seconds = max(world.state.metrics["seconds"], 1e-9)
    assert world.state.metrics["tokens_per_second"] * seconds == pytest.approx(40)


def test_a_log_without_a_loss_is_none_of_a_step() -> None:
    world = World()
    control = world.step(should_log=True)
    world.events.logged({"eval_loss": 2.0}, control)
    assert not world.events.has_logged
    assert world.fired[-1] == "after_backward"
    world.events.step_begins()
    assert world.fired[-2:] == ["step_end", "step_start"], "it ends before the next begins"


@pytest.mark.parametrize("needs_own", [False, True])
def test_a_version_takes_the_place_of_a_folder(needs_own: bool) -> None:
    world = World(needs_own=needs_own)
    control = world.step(should_save=True)
    assert control.should_save is needs_own
    assert world.saves.saved == []
    world.events.step_begins()
    assert world.saves.saved == [("scheduled", 1, False)]
    assert not world.step().should_save


def test_a_version_by_the_clock_makes_no_folder_of_the_trainer() -> None:
    world = World(needs_own=True)
    world.saves.request_by_clock = lambda step: world.saves.request("manual")  # type: ignore[method-assign]
    assert world.step().should_save is False
    world.events.step_begins()
    assert world.saves.saved == [("manual", 1, False)]


def test_a_folder_that_the_trainer_saved_by_itself_has_its_version() -> None:
    world = World(needs_own=True)
    world.step()
    world.events.own_checkpoint_saved()
    world.events.epoch_begins()
    assert world.saves.saved == [("scheduled", 1, False)]


def test_epochs_end_where_their_rows_do() -> None:
    world = World()
    world.events.epoch_begins()
    for number in range(3):  # 5 batches are 3 steps
        world.step()
        assert world.state.position.example == 6 * (number + 1)
    world.trainer.epoch = 1.0
    world.events.epoch_ends(NOTHING)
    assert world.fired[-1] == "epoch_end"
    assert (world.state.position.epoch, world.state.position.example) == (1, 0)
    world.events.epoch_begins()
    world.step()
    world.events.epoch_ends(NOTHING)  # in the middle of one
    assert world.fired[-1] == "step_end"
    assert (world.state.position.epoch, world.state.position.example) == (1, 6)
    world.events.epoch_begins()  # of a Trainer that resumes there
    assert (world.state.position.epoch, world.state.position.example) == (1, 6)


@pytest.mark.parametrize("length", [None, "stream"])
def test_a_stream_ends_its_epoch_whenever_the_trainer_does(length: Any) -> None:
    world = World(length=None)
    if length == "stream":
        world.events.loader = iter([1])  # type: ignore[assignment]
    world.events.epoch_begins()
    world.step()
    world.events.epoch_ends(NOTHING)
    assert world.fired[-1] == "epoch_end"


def over(world: World, runtime: float = 4.0) -> dict[str, float]:
    logs = {"train_runtime": runtime, "train_steps_per_second": 3.0, "train_loss": 1.0}
    world.events.logged(logs, NOTHING)
    return logs


def test_the_last_version_is_written_once_all_is_evaluated() -> None:
    world = World(needs_own=True)
    world.step()
    stops: Any = SimpleNamespace(should_training_stop=True, should_save=True, should_evaluate=True)
    world.events.epoch_ends(stops)
    assert world.saves.saved == []
    assert world.carried.num_ends == 1
    assert stops.should_evaluate, "within an epoch, too"
    assert world.carried.awaits_evaluation
    world.events.evaluated({"eval_loss": 1.0}, stops)
    assert world.saves.saved == []
    over(world)
    assert world.saves.saved == [("scheduled", 1, True)]
    assert world.saves.num_finished == 1
    world.events.end()
    assert len(world.saves.saved) == world.saves.num_finished == 1, "best weights are loaded now"


def test_a_trainer_that_never_sums_up_has_its_last_version_at_its_end() -> None:
    world = World()
    world.step()
    world.events.end()
    assert world.saves.saved == [("scheduled", 1, True)]
    assert world.saves.num_finished == 1


@pytest.mark.parametrize("awaits_evaluation", [False, True])
def test_an_interruption_saves_at_once_and_again_if_an_evaluation_follows(
    awaits_evaluation: bool,
) -> None:
    world = World(length=2)  # one step is an epoch
    world.step()
    world.state.interrupt("a person", StopReason.SIGNAL)
    control: Any = SimpleNamespace(
        should_training_stop=False, should_save=False, should_evaluate=awaits_evaluation
    )
    world.events.epoch_ends(control)
    assert control.should_training_stop
    assert world.saves.saved == [("stopped", 1, True)]
    over(world)
    assert world.saves.saved == [("stopped", 1, True)] * (1 + awaits_evaluation)
    assert not world.carried.awaits_evaluation


def test_speeds_are_those_of_all_processes() -> None:
    world = World()
    world.carried.seconds_before = 12.0
    logs = over(world, runtime=4.0)
    assert (logs["train_runtime"], logs["train_steps_per_second"]) == (16.0, 0.75)
    assert logs["train_loss"] == 1.0
    assert world.trainer.log_history[-1] == {
        "train_runtime": 16.0,
        "train_steps_per_second": 0.75,
    }


@pytest.mark.parametrize("event", ["step", "log", "evaluation", "epoch"])
def test_a_hook_that_stops_is_heard_at_the_next_event(event: str) -> None:
    world = World()
    control: Any = world.step(should_log=True)
    world.state.stop("enough")
    assert not control.should_training_stop
    if event == "step":
        control = world.step()
    elif event == "log":
        world.events.logged({"loss": 1.0}, control)
    elif event == "evaluation":
        world.events.evaluated({"eval_loss": 1.0}, control)
    else:
        world.events.epoch_ends(control)
    assert control.should_training_stop


def test_a_hook_that_stops_at_the_end_of_an_epoch_is_heard_at_once() -> None:
    world = World()
    world.stops_at = "epoch_end"
    for _ in range(3):
        world.step()
    control: Any = SimpleNamespace(
        should_training_stop=False, should_save=False, should_evaluate=False
    )
    world.events.epoch_ends(control)
    assert control.should_training_stop
    assert world.carried.num_ends == 1


@pytest.mark.parametrize(("length", "example"), [(5, 6), (None, 0)])
def test_a_trainer_that_resumes_is_in_its_epoch(length: int | None, example: int) -> None:
    world = World(length=length)
    world.state.step, world.trainer.epoch = 7, 2.4
    world.events.epoch_begins()
    assert (world.state.position.epoch, world.state.position.example) == (2, example)


def test_before_the_first_epoch_the_position_is_the_beginning() -> None:
    world = World()
    world.trainer.epoch = None
    world.events.epoch_begins()
    assert (world.state.position.epoch, world.state.position.example) == (0, 0)


@pytest.mark.parametrize("due", ["should_evaluate", "should_save", ""])
def test_evaluating_and_saving_is_no_wait_for_data(due: str) -> None:
    world, now = World(), iter(range(0, 1000, 10))
    world.events.clock.clock = lambda: float(next(now))
    world.step(**({due: True} if due else {}))  # 0 to 10
    control = world.step(should_log=True)  # 20 to 30
    assert world.state.data_wait_seconds == (0.0 if due else 10.0)
    world.events.logged({"loss": 1.0}, control)
    assert world.state.metrics["seconds"] == (20.0 if due else 30.0)


def stopping(**flags: bool) -> Any:
    """The control of a Trainer at the end of an epoch."""
    return SimpleNamespace(
        **{"should_training_stop": False, "should_save": False, "should_evaluate": False, **flags}
    )


def test_a_version_at_the_beginning_of_an_epoch_knows_how_its_order_is_drawn() -> None:
    world, known = World(), []
    world.saves.save = lambda state: known.append(world.carried.num_epochs)  # type: ignore[method-assign]
    world.events.epoch_begins()
    assert known == [1]


def test_rewards_are_those_of_the_step() -> None:
    world, calls = World(), []
    world.events.rewards = SimpleNamespace(  # type: ignore[assignment]
        begin_step=lambda: calls.append("begin"),
        end_step=lambda: calls.append("end") or {"mine": [0.5]},
    )
    world.step()
    assert (calls, world.state.rewards) == (["begin", "end"], {"mine": [0.5]})
    world.events.rewards = None
    world.step()
    assert world.state.rewards is None


def test_a_step_has_its_rate_and_its_largest_gradient() -> None:
    world = World()
    world.step()
    assert world.state.grad_norm is None, "an optimizer may have used them up"
    weight, bias = world.parts.optimizer.param_groups[0]["params"]
    weight.grad, bias.grad = torch.tensor([[-3.0]]), torch.tensor([2.0])
    world.step()
    assert (float(world.state.grad_norm or 0), world.state.learning_rate) == (3.0, 0.1)


def test_memory_in_use_is_a_number_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_events, "memory_in_use_bytes", lambda device: 640)
    world = World()
    world.events.logged({"loss": 1.0}, world.step(should_log=True))
    assert world.state.metrics["memory_bytes"] == 640.0


@pytest.mark.parametrize("num_epochs", [0, 1])
def test_what_stops_before_the_first_step_of_an_epoch_saves_nothing_of_it(num_epochs: int) -> None:
    world = World(length=2)  # one step is an epoch
    for _ in range(num_epochs):
        world.events.epoch_begins()
        world.step()
        world.trainer.epoch += 1
        world.events.epoch_ends(NOTHING)
    world.events.epoch_begins()
    saved = [*world.saves.saved]
    world.state.interrupt("a person", StopReason.SIGNAL)
    control = stopping(should_training_stop=True, should_save=True, should_evaluate=True)
    world.events.epoch_ends(control)
    assert (control.should_save, control.should_evaluate) == (False, False)
    assert world.carried.num_ends == 0
    assert (world.saves.saved, world.state.position.epoch) == (saved, num_epochs)


def test_who_is_stopped_within_an_epoch_evaluates_only_where_nobody_stops_it() -> None:
    world = World()  # three steps are an epoch
    world.events.epoch_begins()
    world.step()
    world.state.interrupt("a person", StopReason.SIGNAL)
    control = stopping(should_evaluate=True)
    world.events.epoch_ends(control)
    assert (control.should_training_stop, control.should_evaluate) == (True, False)
    assert not world.carried.awaits_evaluation
    assert world.saves.saved == [("stopped", 1, True)]


def test_an_interruption_after_the_last_step_saves_a_whole_training() -> None:
    world = World(length=2)  # one step is an epoch
    world.state.total_steps = 1
    world.step()
    world.state.interrupt("a person", StopReason.SIGNAL)
    control = stopping(should_evaluate=True)
    world.events.epoch_ends(control)
    assert (control.should_training_stop, control.should_evaluate) == (True, True)
    assert world.saves.saved == [("scheduled", 1, True)]
    over(world)
    assert world.saves.saved == [("scheduled", 1, True)] * 2, "its evaluation is done by then"


@pytest.mark.parametrize("needs_own", [False, True])
def test_at_the_end_of_an_epoch_a_version_takes_the_place_of_a_folder(needs_own: bool) -> None:
    world = World(needs_own=needs_own)
    world.step()
    control = stopping(should_save=True)
    world.events.epoch_ends(control)
    assert (control.should_save, world.saves.due) == (needs_own, "scheduled")
    world.saves.is_ending = True
    world.events.epoch_begins()
    assert world.saves.saved == [("scheduled", 1, True)]
    assert world.saves.is_ending is False, "there is another epoch"


def test_an_epoch_without_a_step_is_cut_short_only_by_a_stop() -> None:
    world = World()
    world.events.epoch_begins()
    control = stopping(should_evaluate=True, should_save=True)
    world.events.epoch_ends(control)
    assert (control.should_evaluate, world.saves.due) == (True, "scheduled")


def test_between_gradients_and_the_end_of_their_step_weights_are_changing() -> None:
    world = World()
    seen: list[bool] = []
    world.events._fire = lambda event: seen.append(world.events.is_updating)  # type: ignore[method-assign]
    world.step()
    assert seen == [False, False, True, True, False]  # from the start of the step to its end


def test_tokens_that_are_counted_at_the_end_count() -> None:
    world = World()
    world.step()
    world.events.logged({"train_runtime": 1.0, "num_tokens": 80.0}, NOTHING)
    assert world.state.num_tokens == 80


def test_a_deadline_that_is_near_interrupts() -> None:
    world = World()
    world.saves.schedule.deadline_is_near = True
    assert world.step().should_training_stop
    assert world.state.stop_reason is StopReason.DEADLINE
    assert world.state.stop_message == "run.deadline_near()"
    assert world.state.is_interrupted


def test_evaluations_of_one_step_are_one_and_the_best_is_kept() -> None:
    world = World()
    world.step(should_log=True)
    rows = [1, 2, 3]
    world.events.logged({"eval_loss": 2.5, "eval_rewards/margins": 0.5, "epoch": 1.0}, NOTHING)
    world.events.evaluated({"eval_loss": 2.5, "eval_runtime": 3.0}, NOTHING, rows)
    assert world.fired[-2:] == ["step_end", "eval_end"], "the step is over first"
    assert world.state.evaluation == {"eval_loss": 2.5, "eval_rewards/margins": 0.5}
    world.events.evaluated({"eval_b_loss": 7.0}, NOTHING)
    assert world.state.evaluation == {
        "eval_loss": 2.5,
        "eval_rewards/margins": 0.5,
        "eval_b_loss": 7.0,
    }
    assert (world.state.evaluated_step, world.state.best_evaluation_loss) == (1, 2.5)
    world.step()
    world.events.evaluated({"eval_loss": 3.0}, NOTHING, rows)
    assert world.state.evaluation == {"eval_loss": 3.0}
    assert world.state.best_evaluation_loss == 2.5
    world.step()
    world.events.evaluated({"eval_loss": math.nan}, NOTHING, rows)
    assert world.state.best_evaluation_loss == 2.5
    world.events.evaluated({"eval_loss": 9.0}, NOTHING, [4, 5])
    assert world.state.best_evaluation_loss == 9.0, "other rows are no measure"
    assert Event.EVAL_END.value == "eval_end"


CPU = torch.device("cpu")


def identity_of(dataset: Any) -> str | None:
    return EvaluatedRows(CPU).identity_of(dataset)


VALUES: list[Any] = [
    *(None, 1, 1.5, "1", [1], [[1]], [1, 2], [2, 1], {"a": 1}, {"b": 1}, {"a": 2}, {"a": {"b": 1}}),
    *(np.array([1]), np.array([1.0]), np.array([2]), torch.tensor([1]), torch.tensor([1.0])),
    *(torch.tensor([[1]]), torch.tensor([2]), {"a": 1, "b": 2}, {"a": [1], "b": "x"}),
]


def test_no_two_rows_are_alike() -> None:
    hashes = [identity_of([value]) for value in VALUES]
    assert None not in hashes
    assert len({*hashes}) == len(VALUES)
    assert identity_of([(1, 2)]) == identity_of([[1, 2]])
    assert identity_of([{"b": 2, "a": 1}]) == identity_of([{"a": 1, "b": 2}])
    assert identity_of([{1: 2, "a": 1}]) == identity_of([{"a": 1, 1: 2}])


@pytest.mark.parametrize("num_rows", [1, FIRST_ROWS, FIRST_ROWS + 4])
def test_each_row_and_their_order_count(num_rows: int) -> None:
    rows = [*range(num_rows)]
    whole = identity_of(rows)
    assert whole == identity_of([*rows])
    for index in range(num_rows):
        assert identity_of([*rows[:index], -1, *rows[index + 1 :]]) != whole
    assert identity_of([*rows, num_rows]) != whole
    assert num_rows == 1 or identity_of(rows[::-1]) != whole


def test_each_row_of_a_table_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset as Table

    monkeypatch.setattr(trainer_events, "BATCH_ROWS", 7)
    cells = [*range(20)]
    whole = identity_of(Table.from_dict({"x": cells}))
    assert whole == identity_of(Table.from_dict({"x": cells})) is not None
    for index in cells:
        changed = [-1 if cell == index else cell for cell in cells]
        assert identity_of(Table.from_dict({"x": changed})) != whole


def test_rows_that_cannot_be_known_have_no_identity() -> None:
    assert identity_of(None) is None
    assert identity_of(itertools.count()) is None

    class Drawing(list[int]):
        def __getitem__(self, index: Any) -> Any:
            return torch.rand(2)

    state = torch.get_rng_state()
    assert identity_of(Drawing([1, 2])) is None
    assert torch.equal(torch.get_rng_state(), state)


def test_a_data_set_is_read_once_until_another_one_comes() -> None:
    read: list[int] = []

    class Noting(list[int]):
        def __getitem__(self, index: Any) -> Any:
            read.append(index)
            return super().__getitem__(index)

    rows, others, reader = Noting([1, 2]), Noting([3]), EvaluatedRows(CPU)
    first = reader.identity_of(rows)
    assert read == [0, 1] * 3
    assert reader.identity_of(rows) == first
    assert reader.identity_of(None) is None
    assert reader.identity_of(rows) == first
    assert len(read) == 6
    assert reader.identity_of(others) not in (first, None)
    assert reader.identity_of(rows) == first


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
