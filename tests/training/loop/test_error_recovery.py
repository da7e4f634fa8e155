"""A loss that is not finite, or a spike: back to the last good state, and past the batch."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.backup.format.manifest import SaveKind
from infrastructure.core.errors import (
    CheckpointError,
    DeviceFailedError,
    StorageError,
    TrainingDivergedError,
)
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.training.checkpoints import checkpoint_manager
from infrastructure.training.checkpoints.checkpoint_manager import load_checkpoint
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Event, Observer
from infrastructure.training.recovery import bad_loss
from infrastructure.training.recovery.recovery_log import num_rollbacks
from tests.slow import slow_but
from tests.training.loop.test_loop_recovery import counts, lasting, with_metrics
from tests.training.loop.test_optimizer_step import fail_in_optimizer, out_of_memory
from tests.training.toy import ToySource
from tests.training.toy_training import Training

POISON = 13
OFTEN: dict[str, Any] = {"checkpoint_frequency": 2, "log_frequency": 1}


def place(number: int, epoch: int) -> str:
    """A row of data without places of its own."""
    return f"training.row_place(number={number}, epoch={epoch})"


def batch_with(example: int, epoch: int) -> tuple[int, list[int]]:
    """The number, from 0, of the batch of six in an epoch that holds `example`, and the batch."""
    batches = list(ToySource().train_batches(epoch, 0, 6))
    return next((n, list(batch)) for n, batch in enumerate(batches) if example in batch)


def poisoned(directory: Path, **settings: Any) -> Training:
    training = with_metrics(
        directory, **{"checkpoint_frequency": 2, "log_frequency": 1, **settings}
    )
    training.adapter.poison_example = POISON
    return training


def trained_without(directory: Path, **settings: Any) -> Training:
    """The reference: the batches that hold the poison are left out from the beginning."""
    training = with_metrics(
        directory, **{"checkpoint_frequency": 2, "log_frequency": 1, **settings}
    )
    update = training.step.run

    def step(state: TrainingState, examples: Any) -> None:
        if POISON not in examples:
            update(state, examples)
            return
        state.batch = examples
        training.loop.hooks.fire(Event.STEP_START, state)
        training.step.scheduler.step()  # type: ignore[union-attr]
        training.step._count_step(state)

    training.step.run = step  # type: ignore[method-assign]
    return training.run()


@pytest.mark.parametrize("log_frequency", slow_but([3], [1, 3, 100]))
def test_a_poisoned_row_is_named_and_passed_over(
    tmp_path: Path, log_frequency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each of three epochs; weights, schedule and hooks are as if those batches were not."""
    monkeypatch.setattr(bad_loss, "MAX_ROLLBACKS", 9)
    settings = {"log_frequency": log_frequency}
    training = poisoned(tmp_path / "poisoned", **settings).run()
    reference = trained_without(tmp_path / "reference", **settings)
    assert training.state.step == reference.state.step == training.state.total_steps == 12
    assert torch.equal(training.weights, reference.weights)
    assert counts(training) == counts(reference)
    assert lasting(tmp_path / "poisoned") == lasting(tmp_path / "reference")
    assert len(training.state.skipped) == 3
    for epoch, skipped in enumerate(training.state.skipped):
        number, batch = batch_with(POISON, epoch)
        row = place(6 * number + batch.index(POISON), epoch)
        assert (skipped.step, skipped.epoch, skipped.example) == (
            4 * epoch + number + 1,
            epoch,
            6 * number,
        )
        assert skipped.rows == (row,)
    assert num_rollbacks(training.state) == 3


@pytest.mark.parametrize("log_frequency", slow_but([1], [1, 3]))
def test_a_run_killed_before_in_or_after_going_back_ends_the_same(
    tmp_path: Path, log_frequency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any version that was ever committed could have been the last one before a kill."""
    monkeypatch.setattr(bad_loss, "MAX_ROLLBACKS", 9)
    settings: dict[str, Any] = {"log_frequency": log_frequency, "num_epochs": 2}
    whole = poisoned(tmp_path / "whole", **settings).run()
    versions = whole.checkpoints.checkpoints()
    assert len(versions) > 6
    for number, version in enumerate(versions[1::3]):
        again = poisoned(tmp_path / str(number), **settings)
        again.resume(version)
        assert torch.equal(again.weights, whole.weights)
        assert again.state.skipped == whole.state.skipped
        assert counts(again) == counts(whole)


def test_going_back_waits_for_the_version_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = trained_without(tmp_path / "reference", num_epochs=1)
    monkeypatch.setattr(checkpoint_manager, "BACKGROUND_BYTES", 0)
    training = poisoned(tmp_path / "poisoned", num_epochs=1, checkpoint_frequency=1).run()
    assert torch.equal(training.weights, reference.weights)
    (skipped,) = training.state.skipped
    back_to = f"training.rolled_back_to_skip(start={skipped.step - 1}, step={skipped.step})"
    assert training.state.recoveries[0]["action"] == back_to


class Killed(BaseException):
    """As SIGKILL, but that nothing of it is rescued."""


class KilledAt(Observer):
    """Kills at the n-th event of all."""

    def __init__(self, number: int) -> None:
        self.number = number

    def _count(self, state: TrainingState) -> None:
        self.number -= 1
        if self.number == 0:
            raise Killed

    phase_start = epoch_start = step_start = after_loss = after_backward = _count
    step_end = eval_end = checkpoint_saved = epoch_end = _count


@pytest.mark.parametrize("log_frequency", slow_but([3], [1, 3]))
def test_killed_anywhere_and_resumed_from_the_newest_it_ends_the_same(
    tmp_path: Path, log_frequency: int
) -> None:
    settings: dict[str, Any] = {"log_frequency": log_frequency, "num_epochs": 1}
    whole = poisoned(tmp_path / "whole", **settings).run()
    for number in (8, 16, 25):
        directory = tmp_path / str(number)
        killed = poisoned(directory, **settings)
        killed.loop.hooks.hooks.append(KilledAt(number))
        killed.loop.error_recovery.rescue = lambda state, error: None  # type: ignore[method-assign]
        with pytest.raises(Killed):
            killed.run()
        again = poisoned(directory, **settings)
        again.resume(killed.checkpoints.newest())
        assert torch.equal(again.weights, whole.weights)
        assert lasting(directory) == lasting(tmp_path / "whole")


def everything_poisoned(directory: Path) -> Training:
    training = Training(directory)
    loss = training.adapter.compute_loss

    def compute(model: torch.nn.Module, batch: dict[str, Any]) -> Any:
        if training.state.step >= 3:
            batch["features"] = batch["features"] * float("nan")
        return loss(model, batch)

    training.step.strategy.compute_loss = compute
    return training


def test_after_too_many_ways_back_the_evidence_is_kept(tmp_path: Path) -> None:
    training = everything_poisoned(tmp_path)
    with pytest.raises(TrainingDivergedError) as caught:
        training.run()
    text = str(caught.value)
    assert text.startswith(
        "step 7: training.bad_loss_numbers(loss=NaN, norm=NaN, extent=), rows "
        "training.row_place(number=12, epoch=1)"
    )
    assert "training.max_rollbacks_reached(limit=3)" in text
    assert "step 4: training.rolled_back_to_skip(start=0, step=4)" in text
    assert "step 5: training.rolled_back_to_skip(start=4, step=5)" in text
    evidence = training.checkpoints.checkpoints()[-1]
    assert str(evidence) in text
    assert not training.checkpoints.is_healthy(evidence)
    assert step_of(evidence) == 7
    assert load_checkpoint(evidence).tensors["model"]["head.weight"].isnan().any()
    good = load_checkpoint(training.checkpoints.newest())
    assert all(t.isfinite().all() for t in good.tensors["model"].values())


def test_the_count_of_ways_back_outlives_a_resume(tmp_path: Path) -> None:
    training = everything_poisoned(tmp_path)
    with pytest.raises(TrainingDivergedError):
        training.run()
    again = everything_poisoned(tmp_path)
    with pytest.raises(TrainingDivergedError, match=r"training\.max_rollbacks_reached.*limit=3"):
        again.resume(training.checkpoints.newest())
    assert num_rollbacks(again.state) == 3


@pytest.mark.parametrize(
    ("directory", "recovery", "reason"),
    [
        (
            "runs",
            {"not_finite": "stop"},
            r"training\.policy_is\(policy=training\.recovery\.not_finite=stop\)",
        ),
        (None, {}, "training.no_checkpoints_saved"),
    ],
)
def test_what_may_not_go_back_stops(
    tmp_path: Path, directory: str | None, recovery: dict[str, Any], reason: str
) -> None:
    training = Training(tmp_path / directory if directory else None, recovery=recovery)
    training.adapter.poison_example = POISON
    with pytest.raises(TrainingDivergedError, match=reason):
        training.run()
    assert not training.state.skipped


def spiking(directory: Path, example: int, epoch: int = 1, **settings: Any) -> Training:
    """One example's loss is a thousand times the others'."""
    settings = {"dropout": 0.0, "num_epochs": epoch + 2, "checkpoint_frequency": 2, **settings}
    training = Training(directory, **settings)
    prepare = training.adapter.prepare_batch

    def prepare_batch(examples: Any) -> dict[str, Any]:
        batch = prepare(examples)
        if example in examples and training.state.position.epoch == epoch:
            batch["features"] = batch["features"] * 40.0
        return batch

    training.adapter.prepare_batch = prepare_batch  # type: ignore[method-assign]
    training.step.losses.watch.factor = 20.0  # so that the neighbors' losses are none
    if epoch < 6:
        training.step.losses.watch.recent = [3.0] * 20  # a short run has too few of its own
    return training


@pytest.mark.parametrize(("log_frequency", "epoch"), [(1, 6), (3, 1)])
def test_a_loss_spike_is_gone_back_from(tmp_path: Path, log_frequency: int, epoch: int) -> None:
    policy = {"loss_spike": "roll_back"}
    training = spiking(tmp_path, POISON, epoch, recovery=policy, log_frequency=log_frequency)
    training.run()
    (skipped,) = training.state.skipped
    number, batch = batch_with(POISON, epoch)
    assert (skipped.kind, skipped.step) == ("loss_spike", 4 * epoch + number + 1)
    assert skipped.rows == (place(6 * number + batch.index(POISON), epoch),)
    assert training.state.step == 4 * (epoch + 2)


@pytest.mark.parametrize("failure", [StorageError("refused"), KeyboardInterrupt()])
def test_a_bad_state_is_not_rescued_when_going_back_fails(
    tmp_path: Path, failure: BaseException
) -> None:
    """The save that it waits for is refused once too often, or the user gives up just then."""
    policy = {"loss_spike": "roll_back"}
    training = spiking(tmp_path, POISON, recovery=policy)
    training.checkpointer.failures.max_failed = 0
    collect = training.checkpointer.collect

    def fail(wait: bool) -> Any:
        if wait and training.state.error is None:
            raise failure
        return collect(wait)

    training.checkpointer.collect = fail
    with pytest.raises(type(failure)):
        training.run()
    assert training.state.step > 4  # the spike's
    assert step_of(training.checkpoints.newest()) < training.state.step


def test_a_loss_spike_is_only_noted_by_default(tmp_path: Path) -> None:
    noted = spiking(tmp_path, POISON).run()
    assert [entry["kind"] for entry in noted.state.recoveries] == ["loss_spike"]
    assert "training.loss_spike_recorded" in noted.state.recoveries[0]["action"]
    assert noted.state.skipped == []


def test_a_checkpoint_whose_weights_overflowed_is_not_gone_back_to(tmp_path: Path) -> None:
    """Loss and gradient were numbers, and the update was not: the next loss tells."""
    training = Training(tmp_path, checkpoint_frequency=1)

    class Overflows(Observer):
        """Once; going back comes past the same step again."""

        done = False

        def step_end(self, state: TrainingState) -> None:
            if state.step == 5 and not self.done:
                self.done = True
                state.model.head.weight.data[0, 0] = math.inf

    training.loop.hooks.hooks.append(Overflows())
    training.run()
    assert training.state.step == 12
    assert training.weights.isfinite().all()
    assert "training.rolled_back_to_skip(start=4, " in training.state.recoveries[0]["action"]


def test_a_scaler_goes_on_after_a_rollback() -> None:
    """The step was broken off between unscaling and its update."""
    settings: dict[str, Any] = {"dropout": 0.0, "batch_size": 6, "gradient_accumulation": 1}
    whole = Training(scaler=torch.amp.GradScaler("cpu", init_scale=8.0), **settings).run()
    training = Training(scaler=torch.amp.GradScaler("cpu", init_scale=8.0), **settings)

    class Fails(Observer):
        def after_backward(self, state: TrainingState) -> None:
            if state.step == 3 and state.micro_batch_size > 1:
                raise torch.OutOfMemoryError("CUDA out of memory: planted")

    training.loop.hooks.hooks.append(Fails())
    training.run()
    assert training.state.micro_batch_size == 1
    assert torch.allclose(training.weights, whole.weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize("num_refused", [0, 1])
def test_at_the_end_what_is_still_being_written_is_waited_for(
    num_refused: int, tmp_path: Path
) -> None:
    """Also a version that was refused, and is tried once more."""
    training = Training(tmp_path)
    saver, state = training.checkpointer, training.state
    begun: list[Path] = []
    saver.begin = lambda state, kind: begun.append(tmp_path / kind)
    saver.collect = lambda wait: [begun.pop()] if wait and begun else []
    saver.failures.count = num_refused
    if not num_refused:
        saver.save(state, SaveKind.SCHEDULED)
    saver.finish(state)
    assert (state.checkpoint, saver.failures.count) == (tmp_path / "scheduled", 0)


def test_between_a_bad_loss_and_the_rollback_nothing_is_saved(tmp_path: Path) -> None:
    training = Training(tmp_path)
    saved: list[str] = []
    training.checkpointer.begin = lambda state, kind: saved.append(kind)
    training.checkpointer.schedule.kind_due = lambda step: SaveKind.SCHEDULED  # type: ignore[method-assign]
    training.step.safe_point = None
    training.loop.poll(training.state)
    assert saved == []
    training.step.mark_safe(training.state)
    training.loop.poll(training.state)
    assert saved == ["scheduled"]


@pytest.mark.parametrize(("saved_size", "size_after"), [(4, 2), (1, 1)])
def test_what_was_learnt_of_the_memory_since_is_kept_in_a_rollback(
    saved_size: int, size_after: int, tmp_path: Path
) -> None:
    training = Training(tmp_path)

    def roll_back(state: TrainingState) -> Path:
        state.micro_batch_size = saved_size
        return tmp_path

    training.checkpointer.roll_back = roll_back
    training.state.micro_batch_size = 2
    training.loop.error_recovery.roll_back(training.state)
    assert training.state.micro_batch_size == size_after


def test_what_was_chosen_in_a_rollback_is_saved_at_once(tmp_path: Path) -> None:
    training = Training(tmp_path)
    saved: list[str] = []
    training.checkpointer.begin = lambda state, kind: saved.append(kind)
    training.checkpointer.save_decision(training.state)
    assert saved == ["scheduled"]


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (RuntimeError("a bug"), ["emergency"]),
        (KeyboardInterrupt(), ["stopped"]),
        (TrainingDivergedError("its loss is no number"), []),
        (DeviceFailedError("it fell off the bus"), []),
    ],
)
def test_what_ends_a_training_decides_whether_it_is_saved(
    error: BaseException, kinds: list[str], tmp_path: Path
) -> None:
    training = Training(tmp_path)
    saved: list[str] = []
    training.checkpointer.begin = lambda state, kind: saved.append(kind)
    training.state.step = 3
    training.step.mark_safe(training.state)
    training.loop.error_recovery.rescue(training.state, error)
    assert saved == kinds


def refusing(error: Exception) -> Any:
    def refuse(*_: object) -> None:
        raise error

    return refuse


def test_a_bad_loss_is_named_although_its_state_cannot_be_kept(tmp_path: Path) -> None:
    training = Training(tmp_path, recovery={"not_finite": "stop"})
    training.adapter.poison_example = POISON
    training.checkpointer.keep_evidence = refusing(StorageError("full"))  # type: ignore[method-assign]
    with pytest.raises(TrainingDivergedError) as caught:
        training.run()
    end = ".training.bad_state_not_kept(error=full) training.bad_loss_advice()"
    assert str(caught.value).endswith(end)


def test_a_torn_step_is_an_error_where_no_checkpoint_is_good(tmp_path: Path) -> None:
    training = Training(tmp_path)
    fail_in_optimizer(training, 5, out_of_memory())
    training.checkpointer.roll_back = refusing(CheckpointError("none is good"))  # type: ignore[method-assign]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        training.run()
    assert caught.value.__notes__ == ["none is good"]
    assert training.state.recoveries == []


def test_a_failed_gpu_is_named_although_the_last_save_failed_too(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.checkpointer.collect = refusing(ValueError("planted"))  # type: ignore[method-assign]
    readable = training.loop.error_recovery.readable
    other, failed = OSError("CUDA error: no"), torch.AcceleratorError("CUDA error: assert")
    assert readable(training.state, other) is other
    assert isinstance(readable(training.state, failed), DeviceFailedError)
    [note] = failed.__notes__
    assert note.startswith("training.finishing_checkpoint_failed(error=ValueError: planted")
