"""The loop: order of events, accumulation, exact resume, out of memory, divergence."""

import itertools
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.backup.format.manifest import SaveKind
from infrastructure.core.errors import ProcessLostError, TrainingDivergedError
from infrastructure.run.checkpoint_paths import by_step, step_of
from infrastructure.training.checkpoints.checkpoint_manager import (
    load_checkpoint,
)
from infrastructure.training.checkpoints.save_schedule import SaveSchedule
from infrastructure.training.checkpoints.snapshot import (
    restore_snapshot,
    take_snapshot,
)
from infrastructure.training.core.state import Phase, TrainingState
from infrastructure.training.distributed.group import ALONE, Group, Status
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.forward.gradient_accumulation import split
from infrastructure.training.loop import loop as loop_module
from tests.training.toy import ToyModel, ToySource, items_of
from tests.training.toy_training import Training


def test_the_events_of_one_epoch_come_in_their_order(tmp_path: Path) -> None:
    training = Training(tmp_path, num_epochs=1, num_examples=9, checkpoint_interval=1).run()
    step = ["step_start", *["after_loss"] * 3, "after_backward", "step_end"]
    short = ["step_start", *["after_loss"] * 2, "after_backward", "step_end"]
    assert training.recorder.events == [
        *["train_start", "checkpoint_saved", "phase_start", "epoch_start"],
        *step,
        *short,
        *["eval_end", "epoch_end", "phase_end", "checkpoint_saved", "train_end"],
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """Saved after each step."""
    return Training(tmp_path_factory.mktemp("whole"), checkpoint_frequency=1).run()


@pytest.mark.parametrize("step", [1, 2, 3, 4, 6, 8, 11])
def test_resuming_anywhere_gives_the_same_bits(tmp_path: Path, step: int, whole: Training) -> None:
    """Dropout on, accumulation 3, a short last batch, mid-epoch and at epoch ends."""
    assert len(whole.recorder.losses) == 12
    again = Training(tmp_path / "again", checkpoint_frequency=1)
    again.resume(by_step(whole.checkpoints.store)[step])
    assert again.recorder.losses == whole.recorder.losses[step:]
    assert torch.equal(again.weights, whole.weights)
    assert again.source.seen == whole.source.seen[consumed_examples(step) :]


def consumed_examples(step: int) -> int:
    epochs, steps = divmod(step, 4)
    return epochs * 20 + min(steps * 6, 20)


@pytest.mark.parametrize("left_out", ["torch", "optimizer", "scheduler", "position"])
def test_a_checkpoint_without_a_part_would_be_noticed(left_out: str, whole: Training) -> None:
    """The test above can fail: each missing part changes the result."""
    saved = load_checkpoint(by_step(whole.checkpoints.store)[5])
    again = Training()
    fresh = take_snapshot(again.state, again.step)
    if left_out == "torch":
        saved.tensors["random"]["torch"] = fresh.tensors["random"]["torch"]
    elif left_out == "optimizer":
        saved.tensors["optimizer"] = {}
    elif left_out == "scheduler":
        saved.values["scheduler"] = fresh.values["scheduler"]
    else:
        saved.values["position"] = fresh.values["position"]
    restore_snapshot(saved, again.state, again.step)
    assert not torch.equal(again.run().weights, whole.weights)


def test_how_a_batch_is_split_does_not_matter() -> None:
    settings: dict[str, Any] = {"dropout": 0.0, "num_epochs": 1, "num_examples": 24}
    whole = Training(batch_size=8, gradient_accumulation=1, **settings).run()
    pieces = Training(batch_size=1, gradient_accumulation=8, **settings).run()
    assert torch.allclose(whole.weights, pieces.weights, rtol=0, atol=1e-6)
    assert whole.recorder.losses == pytest.approx(pieces.recorder.losses, abs=1e-6)


def test_running_out_of_memory_shrinks_the_micro_batch_and_nothing_else() -> None:
    settings: dict[str, Any] = {"dropout": 0.0, "batch_size": 6, "gradient_accumulation": 1}
    usual = Training(**settings).run()
    tight = Training(**settings)
    tight.adapter.fail_above = 2
    tight.run()
    assert tight.state.micro_batch_size == 1
    assert tight.state.step == usual.state.step
    assert torch.allclose(tight.weights, usual.weights, rtol=0, atol=1e-6)


def test_one_example_that_does_not_fit_is_an_error() -> None:
    training = Training(batch_size=1)
    training.adapter.fail_above = 0
    with pytest.raises(torch.OutOfMemoryError):
        training.run()
    assert training.recorder.events[-2:] == ["error", "train_end"]
    assert isinstance(training.state.error, torch.OutOfMemoryError)


def test_a_loss_that_is_not_finite_stops_before_it_is_saved(tmp_path: Path) -> None:
    training = Training(tmp_path, checkpoint_frequency=1, recovery={"not_finite": "stop"})
    training.adapter.poison_example = 7
    with pytest.raises(TrainingDivergedError, match=r"training\.bad_loss_numbers\(loss=NaN"):
        training.run()
    for checkpoint in filter(training.checkpoints.is_healthy, training.checkpoints.checkpoints()):
        weights = load_checkpoint(checkpoint).tensors["model"]
        assert all(torch.isfinite(tensor).all() for tensor in weights.values())


class StopAt(Observer):
    def __init__(self, step: int) -> None:
        self.step = step

    def step_end(self, state: TrainingState) -> None:
        if state.step == self.step:
            state.stop("enough")


def test_a_stop_saves_and_can_be_gone_on_from(tmp_path: Path) -> None:
    whole = Training().run()
    stopped = Training(tmp_path, hooks=[StopAt(5)]).run()
    assert stopped.state.step == 5
    assert stopped.state.stop_message == "enough"
    again = Training().resume(stopped.checkpoints.newest())
    assert torch.equal(again.weights, whole.weights)


class FailAt(Observer):
    """Fails inside the accumulation window of one step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_loss(self, state: TrainingState) -> None:
        if state.step == self.step:
            raise OSError("the disk went away")


def test_an_error_inside_a_window_saves_the_steps_before_it(tmp_path: Path) -> None:
    whole = Training().run()
    failed = Training(tmp_path, hooks=[FailAt(5)])
    with pytest.raises(OSError, match="disk went away"):
        failed.run()
    again = Training().resume(failed.checkpoints.newest())
    assert again.recorder.losses == whole.recorder.losses[5:]
    assert torch.equal(again.weights, whole.weights)


def test_phases_train_their_own_parameters() -> None:
    phases = [Phase("head", 1, frozenset({"head.weight", "head.bias"})), Phase("rest", 1)]
    training = Training(num_epochs=2, phases=phases)
    before = training.state.model.inner.weight.detach().clone()
    changed: list[bool] = []

    class Watch(Observer):
        def phase_end(self, state: TrainingState) -> None:
            changed.append(not torch.equal(before, state.model.inner.weight))

    training.loop.hooks.hooks.append(Watch())
    training.run()
    assert changed == [False, True]


def test_max_steps_ends_the_training() -> None:
    training = Training(max_steps=5).run()
    assert training.state.step == 5
    assert training.recorder.events.count("train_end") == 1


def test_split_keeps_every_example_in_order() -> None:
    assert list(split(list(range(5)), 2)) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("sizes", [(2, 3), (1, 1)])
def test_the_weights_are_those_of_plain_pytorch(sizes: tuple[int, int]) -> None:
    """With SGD, to which the size of a gradient matters: Adam would hide a wrong mean."""
    settings: dict[str, Any] = {"optimizer": "sgd", "max_grad_norm": None, "learning_rate": 0.05}
    settings |= {"warmup_steps": 0, "scheduler_type": "constant", "weight_decay": 0.0}
    settings |= {"batch_size": sizes[0], "gradient_accumulation": sizes[1]}
    training = Training(dropout=0.0, num_epochs=2, **settings).run()
    model, source, losses = ToyModel(dropout=0.0), ToySource(), []
    for epoch in range(2):
        for examples in source.train_batches(epoch, 0, math.prod(sizes)):
            rows = np.concatenate([items_of(example) for example in examples])
            features = torch.tensor(rows, dtype=torch.float32)
            loss = ((model(features) - features.sum(dim=1)) ** 2).mean()
            losses.append(float(loss.detach()))
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter -= 0.05 * gradient
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.allclose(training.weights, expected, rtol=0, atol=1e-6)
    assert training.recorder.losses == pytest.approx(losses, abs=1e-5)


class Rhythm(Observer):
    """The steps after which something happened."""

    def __init__(self) -> None:
        self.logged: list[int] = []
        self.evaluated: list[int] = []
        self.saved: list[int] = []

    def step_end(self, state: TrainingState) -> None:
        if state.metrics:
            self.logged.append(state.step)

    def eval_end(self, state: TrainingState) -> None:
        self.evaluated.append(state.step)

    def checkpoint_saved(self, state: TrainingState) -> None:
        self.saved.append(step_of(state.checkpoint))


@pytest.mark.parametrize(
    ("settings", "evaluated"),
    [
        ({"validation_interval": 1}, [4, 8, 12]),
        ({"validation_interval": 2}, [8, 12]),
        ({"validation_interval": None}, [12]),
        ({"validation_interval": None, "validation_frequency": 5}, [5, 10, 12]),
    ],
)
def test_it_is_evaluated_when_it_is_due(
    settings: dict[str, int | None], evaluated: list[int]
) -> None:
    rhythm = Rhythm()
    Training(hooks=[rhythm], **settings).run()
    assert rhythm.evaluated == evaluated


@pytest.mark.parametrize(
    ("settings", "saved"),
    [
        ({"checkpoint_interval": 1}, [0, 4, 8, 12]),
        ({"checkpoint_interval": 2}, [0, 8, 12]),
        ({"checkpoint_interval": None}, [0, 12]),
        ({"checkpoint_interval": None, "checkpoint_frequency": 5}, [0, 5, 10, 12]),
    ],
)
def test_it_is_saved_when_it_is_due(
    tmp_path: Path, settings: dict[str, int | None], saved: list[int]
) -> None:
    rhythm = Rhythm()
    Training(tmp_path, hooks=[rhythm], **settings).run()
    assert rhythm.saved == saved


def test_it_is_logged_when_it_is_due_and_at_the_end_of_each_epoch() -> None:
    rhythm = Rhythm()
    Training(hooks=[rhythm], log_frequency=5).run()
    assert rhythm.logged == [1, 4, 5, 8, 10, 12]


def test_the_best_loss_is_the_least_that_is_a_number() -> None:
    training = Training()
    losses = iter([2.0, math.nan, 3.0])
    training.loop.evaluate = lambda: {"eval_loss": next(losses)}
    training.run()
    assert training.state.best_evaluation_loss == 2.0


def test_a_source_that_ends_too_early_is_no_endless_loop() -> None:
    training = Training()
    training.source.num_examples = 18
    batches = training.source.train_batches
    training.step.data = Short(batches)  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="ended at example 18 of epoch 0, before its 20"):
        training.run()


class Long(ToySource):
    """Goes on behind its own `num_examples`."""

    def train_batches(
        self, epoch: int, start_example: int, batch_size: int
    ) -> Generator[Sequence[int], None, None]:
        yield from super().train_batches(epoch, start_example, batch_size)
        yield [0] * batch_size


def test_of_a_source_that_does_not_end_no_more_is_taken_than_an_epoch() -> None:
    reference, training = Training(dropout=0.0).run(), Training(dropout=0.0)
    training.step.data = Long()
    training.run()
    assert torch.equal(training.weights, reference.weights)


class Short:
    """Says that it has more examples than it gives."""

    num_examples = 20

    def __init__(self, train_batches: Any) -> None:
        self.train_batches = train_batches


def test_steps_of_ones_own_loop_report_themselves() -> None:
    training = Training()
    loss = training.loop.single_step(training.state, [0, 1, 2])
    assert loss == training.state.loss == training.recorder.losses[0]
    assert 0 < training.state.metrics["seconds"] < 60
    assert training.recorder.events[-1] == "step_end"
    assert (training.state.step, training.state.position.example) == (1, 3)
    assert not training.state.step_is_ending


def test_a_phase_is_one_pass_over_the_data_unless_configured_otherwise() -> None:
    training = Training(phases=[Phase()]).run()  # 20 examples in batches of 6
    assert training.state.step == 4


def test_a_loop_that_runs_again_may_be_broken_off_again_but_not_while_weights_change() -> None:
    """What the first run ended with holds for that one alone."""
    training = Training(max_steps=2)
    training.state.num_processes = 3  # of whoever trained before
    training.run()
    assert training.state.num_processes == 1
    allowed: list[tuple[str, bool]] = []

    class Watch(Observer):
        def step_start(self, state: TrainingState) -> None:
            allowed.append(("start", training.loop.may_break_off))

    def update(*_: object) -> None:
        allowed.append(("update", training.loop.may_break_off))

    training.loop.hooks.hooks.append(Watch())
    training.step.optimizer.register_step_pre_hook(update)
    training.loop.total_steps = 4
    training.run()
    assert allowed == [("start", True), ("update", False)] * 2


@pytest.mark.parametrize("fails", [False, True])
def test_the_others_are_left_last_and_with_the_reason(fails: bool) -> None:
    group = Group()
    training = Training(hooks=[FailAt(1 if fails else -1)])
    reasons: list[str | None] = []
    seen: list[Group] = []

    def leave(reason: str | None) -> None:
        reasons.append(reason)
        training.recorder.events.append("left")
        seen.append(training.step.group)

    training.loop.join, training.loop.leave = (lambda: group), leave
    with pytest.raises(OSError, match="disk") if fails else nullcontext():
        training.run()
    assert training.recorder.events[-2:] == ["train_end", "left"]
    (reason,) = reasons
    assert ("the disk went away" in str(reason)) if fails else reason is None
    assert seen == [group]
    assert training.step.group is ALONE


@pytest.mark.parametrize("first_compiles", [True, False])
def test_another_rank_computes_as_the_first_does(first_compiles: bool) -> None:
    class OfRank1(Group):
        rank = 1

        def decide(self, make: Callable[[], Any]) -> Any:
            return first_compiles

    training = Training(max_steps=1)
    changed: list[bool] = []
    training.loop.evaluate = None
    training.loop.join = OfRank1
    training.adapter.set_compiled = changed.append  # type: ignore[method-assign]
    training.run()
    assert changed == [True] * first_compiles


def test_the_numbers_of_a_record_are_of_all_steps_since_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each step takes a second by this clock, and what it waits for data another one."""
    seconds = itertools.count()
    monkeypatch.setattr(loop_module.time, "perf_counter", lambda: float(next(seconds)))
    records: dict[int, dict[str, float]] = {}
    rates: list[float] = []

    class Read(Observer):
        def step_start(self, state: TrainingState) -> None:
            rates.append(state.optimizer.param_groups[0]["lr"])

        def step_end(self, state: TrainingState) -> None:
            if state.metrics:
                records[state.step] = {**state.metrics, "norm": float(state.grad_norm)}

    training = Training(hooks=[Read()], log_frequency=3, num_epochs=2, num_examples=21)
    training.loop.evaluate = None
    training.run()
    tokens = [sum(e % 5 + 1 for e in seen) for seen in _steps_of(training.source.seen, 21, 6)]
    assert sorted(records) == [1, 3, 4, 6, 8]
    before = 0
    for step, record in records.items():
        new = tokens[before:step]
        assert record["seconds"] == len(new)
        assert record["tokens_per_second"] == sum(new) / len(new)
        assert record["tokens"] == sum(tokens[:step])
        assert record["learning_rate"] == rates[step - 1]
        assert record["grad_norm"] == record["norm"]
        before = step
    assert training.state.num_tokens == sum(tokens)
    assert training.state.num_examples == 2 * 21
    assert training.state.data_wait_seconds == 8


def _steps_of(seen: list[int], num_examples: int, size: int) -> list[list[int]]:
    epochs = [seen[at : at + num_examples] for at in range(0, len(seen), num_examples)]
    return [epoch[at : at + size] for epoch in epochs for at in range(0, len(epoch), size)]


@pytest.mark.parametrize("begins_anew", [True, False])
def test_a_phase_of_another_model_is_compared_with_nothing_before_it(
    tmp_path: Path, begins_anew: bool
) -> None:
    """And goes on with what it has seen itself, where it was broken off in the middle."""
    phases = [Phase("one", 1), Phase("two", 2, begins_anew=begins_anew)]

    def training_in(folder: Path) -> Training:
        training = Training(folder, phases=phases, checkpoint_frequency=1)
        values = {4: 1.0, 8: 3.0, 12: 4.0}  # by step
        training.loop.evaluate = lambda: {"eval_loss": values[training.state.step]}
        return training

    whole = training_in(tmp_path / "whole").run()
    assert whole.state.best_evaluation_loss == (3.0 if begins_anew else 1.0)
    assert len(whole.step.losses.watch.recent) == (8 if begins_anew else 12)
    for step in (4, 9):  # where the second begins, and in the middle of it
        again = training_in(tmp_path / str(step))
        again.resume(by_step(whole.checkpoints.store)[step])
        assert again.step.losses.watch == whole.step.losses.watch
        assert again.state.best_evaluation_loss == whole.state.best_evaluation_loss


def test_a_bad_loss_is_found_before_it_is_evaluated_or_logged(tmp_path: Path) -> None:
    training = Training(
        tmp_path, log_frequency=100, validation_frequency=2, recovery={"not_finite": "stop"}
    )
    training.adapter.poison_example = next(ToySource().train_batches(0, 6, 20))[0]
    rhythm = Rhythm()
    training.loop.hooks.hooks.append(rhythm)
    training.loop.evaluate = lambda: pytest.fail("a model of no numbers is measured")
    with pytest.raises(TrainingDivergedError):
        training.run()
    assert rhythm.evaluated == []


@pytest.mark.parametrize("by", ["clock", "wish", "steps", "end of the epoch", "last step"])
def test_ones_own_loop_saves_for_the_same_reasons(by: str) -> None:
    settings: dict[str, Any] = {"checkpoint_interval": 1 if by == "end of the epoch" else None}
    if by == "steps":
        settings["checkpoint_frequency"] = 2
    now = [0.0]
    training = Training(num_examples=9, max_steps=2 if by == "last step" else 9, **settings)
    training.checkpointer.schedule = SaveSchedule(40, clock=lambda: now[0])
    training.loop.single_step(training.state, list(range(6)))
    assert not training.loop.save_is_due(training.state)
    assert not training.loop.may_break_off  # nobody knows what its owner does between two steps
    if by == "clock":
        now[0] = 50.0
    if by == "wish":
        training.state.must_save = True
    is_due_before = by in ("clock", "wish")
    assert training.loop.save_is_due(training.state) == is_due_before
    training.loop.single_step(training.state, [6, 7, 8])
    assert training.loop.save_is_due(training.state)


class Agreeing(Group):
    """One of two ranks, which sends or receives a decision."""

    size = 2

    def __init__(self, rank: int, **received: Any) -> None:
        usual = {"is_stopped": False, "micro_batch_size": 2, "weights": None, "saves": False}
        self.rank, self.decided = rank, {**usual, "kind": None, **received}
        self.agreed: list[object] = []

    def decide(self, make: Callable[[], Any]) -> Any:
        if self.is_first:
            self.decided = make()
        return self.decided

    def agree(self, status: Status, reason: str = "") -> Status:
        self.agreed.append((status, reason))
        return super().agree(status, reason)


@pytest.mark.parametrize(
    ("step", "will_save", "is_spread", "has_folder", "sent", "kind"),
    [
        (1, False, False, True, {"weights": "sum"}, None),  # the first step is compared too
        (2, False, False, True, {}, None),
        (2, True, False, True, {"weights": "sum", "saves": True}, SaveKind.SCHEDULED),
        (2, True, False, False, {}, SaveKind.SCHEDULED),
        (1, True, True, True, {"kind": "scheduled"}, SaveKind.SCHEDULED),
    ],
)
def test_rank_0_sends_what_it_decides_after_a_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    will_save: bool,
    is_spread: bool,
    has_folder: bool,
    sent: dict[str, Any],
    kind: SaveKind | None,
) -> None:
    monkeypatch.setattr(loop_module, "checksum", lambda model: "sum")
    monkeypatch.setattr(loop_module, "is_sharded", lambda model: is_spread)
    training, group = Training(tmp_path if has_folder else None), Agreeing(0)
    training.state.step, training.step.group = step, group
    assert training.loop._agreed_kind(training.state, will_save) == kind
    assert group.decided == Agreeing(1, **sent).decided
    assert group.agreed == [(Status.FINE, "")] * ("weights" in sent)
    training.state.stop("enough")
    training.loop._agreed_kind(training.state, False)
    assert group.decided["is_stopped"]


def test_another_rank_follows_rank_0_and_ends_with_other_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_module, "checksum", lambda model: "own")
    training = Training()
    loop, state = training.loop, training.state

    def follow(**received: Any) -> SaveKind | None:
        training.step.group = Agreeing(1, **received)
        return loop._agreed_kind(state, will_save=True)

    assert follow(is_stopped=True, micro_batch_size=1, weights="own") is None
    assert (loop._is_over(state), state.micro_batch_size) == (True, 1)
    assert follow(kind="stopped") is SaveKind.STOPPED
    assert not loop._is_over(state)
    training.step.mark_safe(state)
    state.step = 3
    training.step.losses.sums.loss_sum, training.step.losses.sums.num_steps = math.nan, 1
    assert follow() is None
    with pytest.raises(TrainingDivergedError):  # where rank 0 saves, this one has looked, too
        follow(saves=True)
    with pytest.raises(ProcessLostError) as caught:
        follow(weights="other")
    differ = "training.weights_differ_between_ranks(step=3, rank=rank 1)"
    assert str(caught.value) == differ
    assert training.step.safe_point is None
