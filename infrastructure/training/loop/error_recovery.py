"""How a training gets over errors: refused saves, bad losses, torn steps, rescue at the end.

The way back is a resume in the same process: the newest good checkpoint is restored, and what was
learnt since (which batch is passed over, how small micro-batches must be) is kept and saved at
once, so that whoever goes on after a kill chooses the same.
"""

import time
from pathlib import Path

from infrastructure.core.errors import (
    CheckpointError,
    DeviceFailedError,
    StorageError,
    TrainingDivergedError,
)
from infrastructure.training.checkpoints.save_schedule import DEADLINE_IS_NEAR
from infrastructure.training.core.error_handlers import (
    can_be_halved,
    free_memory,
    is_device_fault,
    let_go,
)
from infrastructure.training.core.metric_accumulator import LogWindow
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Event
from infrastructure.training.loop.optimizer_step import Stepping
from infrastructure.training.recovery.loss_spikes import BadStep
from infrastructure.training.recovery.recovery_log import note, some_of
from infrastructure.training.recovery.rollback import (
    OUT_OF_MEMORY,
    REMEDY,
    device_failed,
    take_out,
    tried,
    why_not_back,
)
from infrastructure.training.recovery.safe_point import at_boundary, forget_unscaling


class Recovering(Stepping):
    """A training that can save itself, and go back."""

    def _after_bad_loss(self, state: TrainingState, bad: BadStep) -> None:
        """Back to the newest good checkpoint: to skip the bad batch, or to find it first.

        Raises:
            TrainingDivergedError: that is not allowed, or not possible, any more.
        """
        self.boundary = None  # whatever happens from here on, this state is not saved as a good one
        reason = why_not_back(state, bad, self.config.recovery)
        was_searched = bad.step <= self.watch.until_step
        try:
            if reason is not None:
                raise CheckpointError(reason)
            began = self._go_back(state)
        except CheckpointError as error:
            raise TrainingDivergedError(self._evidence(state, bad, str(error))) from None
        self.watch.until_step = 0 if bad.is_exact else bad.step
        take_out(state, bad, began, was_searched)
        self._save_choice(state)

    def _evidence(self, state: TrainingState, bad: BadStep, reason: str) -> str:
        """All that is known of a bad loss; the state is kept, and never gone on from."""
        kept = ""
        self.log = LogWindow()  # its sums may not be numbers
        if self.keep_evidence is not None:
            try:
                kept = f" This state is kept in {self.keep_evidence(state)}, to be looked at."
            except (StorageError, OSError) as error:
                kept = f" This state could not be kept: {error}."
        rows = f", rows {', '.join(some_of(bad.rows, 20))}" if bad.rows else ""
        return f"{bad}{rows}; {reason}{tried(state)}.{kept} {REMEDY}"

    def _after_torn_step(self, state: TrainingState, error: Exception) -> None:
        """Out of memory inside the optimizer's step: its weights are those of neither step.

        Raises:
            Exception: `error`, where it was something else, or nothing can be gone back to.
        """
        size = self._micro_batch_size(state)
        is_torn = self.boundary is None and can_be_halved(error, size, size)
        may_shrink = self.config.recovery.out_of_memory == "smaller"
        if not (is_torn and may_shrink and self.go_back is not None):
            raise error
        message, step = str(error), state.step + 1
        let_go(error)
        try:
            began = self._go_back(state)
        except CheckpointError as failure:
            error.add_note(str(failure))
            raise error from None
        self._shrink(state, size // 2)
        action = f"went back to step {began}, micro-batches of {state.micro_batch_size} from there"
        note(state, OUT_OF_MEMORY, action, message, step=step)
        self._save_choice(state)

    def _go_back(self, state: TrainingState) -> int:
        """Be where the newest good checkpoint was, and keep what was learnt since.

        Raises:
            CheckpointError: there is none.
        """
        if self.go_back is None:
            raise CheckpointError("no checkpoints are saved that could be gone back to")
        self._tell_saved(state, wait=True)
        self.optimizer.zero_grad()
        free_memory(self.adapter.device)
        forget_unscaling(self.scaler, self.adapter.device)
        skipped, recoveries = state.skipped, state.recoveries
        size = state.micro_batch_size
        state.checkpoint = self.go_back(state)
        state.skipped, state.recoveries = skipped, recoveries
        state.micro_batch_size = min(size, state.micro_batch_size)
        state.metrics, state.output, state.batch = {}, None, None
        return state.step

    def _save_choice(self, state: TrainingState) -> None:
        """Whoever goes on after a kill must choose the same."""
        self._mark(state)
        if self.save is not None:
            self._save(state, "scheduled")

    def _as_told(self, state: TrainingState, error: BaseException) -> BaseException:
        """`error`, or what a person should read in its place."""
        if not is_device_fault(error):
            return error
        try:
            self._tell_saved(state, wait=True)  # what was handed over before is written still
        except Exception as failure:
            error.add_note(f"finishing the last checkpoint failed too: {failure}")
        return device_failed(error, state)

    def _rescue(self, state: TrainingState, error: BaseException) -> None:
        """Go back to the last boundary, and save it, if the weights are still those it had.

        Not after the GPU failed (it cannot be read any more) nor after divergence.
        """
        self.is_ending = True
        boundary = self.boundary
        if boundary is None or isinstance(error, DeviceFailedError):
            return
        self.optimizer.zero_grad()
        boundary.restore(state, self.adapter.device)
        self.log, self.watch = boundary.log, boundary.watch
        if self.save is None or state.step == 0 or isinstance(error, TrainingDivergedError):
            return
        if not self.log.is_finite(self.scaler is not None):
            return
        try:
            stopped = isinstance(error, KeyboardInterrupt)
            self.save(state, "stopped" if stopped else "emergency")
            self._tell_saved(state, wait=True)
        except Exception as failure:
            error.add_note(f"saving a last checkpoint failed too: {failure}")

    @property
    def may_break_off(self) -> bool:
        """Whether an exception now costs no more than the step that is being done."""
        return self.boundary is not None and not (self.is_saving or self.is_ending)

    def poll(self, state: TrainingState) -> None:
        """For what takes long between two steps: save if that is due, end if that is asked for.

        Raises:
            KeyboardInterrupt: the training is to end; what called this is done again on resuming.
        """
        self._look_at_clock(state)
        if state.is_interrupted:
            raise KeyboardInterrupt(state.stop_reason)
        kind = self.schedule.kind_due(state.step)
        if self.save is not None and self.boundary is not None and kind is not None:
            with at_boundary(self, state, self.boundary, self.adapter.device):
                self._save(state, kind)

    def _look_at_clock(self, state: TrainingState) -> None:
        if self.schedule.deadline_is_near:
            state.interrupt(DEADLINE_IS_NEAR)

    def _save(self, state: TrainingState, kind: str) -> None:
        """Write a checkpoint of finite numbers; a store may refuse a few times.

        Raises:
            TrainingDivergedError: they are not finite.
            StorageError: it has refused once too often.
        """
        assert self.save is not None
        self._refuse_bad_loss(state)
        state.must_save = False
        started, self.is_saving = time.perf_counter(), True
        try:
            with self.failures.borne(state):
                self.save(state, kind)
        finally:
            self.is_saving = False
        self.schedule.note_save(state.step, time.perf_counter() - started)

    def _tell_saved(self, state: TrainingState, wait: bool = False) -> None:
        """Fire CHECKPOINT_SAVED for what is committed: the call to save it proves nothing."""
        committed: list[Path] = []
        with self.failures.borne(state):
            committed = self.collect(wait)
        for checkpoint in committed:
            self.failures.reset()
            state.checkpoint = checkpoint
            self.fire(Event.CHECKPOINT_SAVED, state)

    def _finish_saving(self, state: TrainingState) -> None:
        """Wait for the last checkpoint; one that was refused is tried once more."""
        self.is_ending = True
        self._tell_saved(state, wait=True)
        if self.save is not None and self.failures.count:
            self._save(state, "scheduled")
            self._tell_saved(state, wait=True)
