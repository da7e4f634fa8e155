"""Recovery from bad losses and half-finished steps, and a last checkpoint after an error.

A rollback restores the newest good checkpoint in the same process. Decisions made since that
checkpoint (which batch to skip, how small micro-batches must be) are kept and saved at once, so
that a run that is killed and resumed makes the same decisions.
"""

from infrastructure.backup.format.manifest import SaveKind
from infrastructure.core.error_place import named
from infrastructure.core.errors import (
    CheckpointError,
    DeviceFailedError,
    StorageError,
    TrainingDivergedError,
)
from infrastructure.core.messages import phrase
from infrastructure.models.model_inputs import is_sharded
from infrastructure.optimization.device_errors import (
    can_be_halved,
    free_memory,
    is_device_fault,
    release_traceback,
)
from infrastructure.training.core.state import RecoveryKind, TrainingState
from infrastructure.training.distributed.replicate import mirror
from infrastructure.training.loop.checkpointer import Checkpointer
from infrastructure.training.loop.optimizer_step import OptimizerStep
from infrastructure.training.recovery.bad_loss import (
    describe_attempts,
    device_failed,
    rollback_refusal,
    skip_batch,
)
from infrastructure.training.recovery.loss_spikes import BadStep
from infrastructure.training.recovery.recovery_log import record_recovery, shortened
from infrastructure.training.recovery.safe_point import forget_unscaling


class ErrorRecovery:
    """Recovery of a run from errors, by means of its checkpoints.

    Args:
        optimizer_step: the step that failed and is repeated.
        checkpointer: restores an earlier checkpoint.

    Attributes:
        policy: which errors to recover from, and how often.
    """

    def __init__(self, optimizer_step: OptimizerStep, checkpointer: Checkpointer) -> None:
        self.optimizer_step = optimizer_step
        self.checkpointer = checkpointer
        self.policy = optimizer_step.recovery

    def after_bad_loss(self, state: TrainingState, bad: BadStep) -> None:
        """Roll back to the newest good checkpoint and skip the bad batch.

        If it is not known which batch is bad, the losses after the rollback are checked step by
        step to find it.

        Raises:
            TrainingDivergedError: rolling back is not allowed, or no longer possible.
        """
        # From here on this state is never saved as a good one.
        self.optimizer_step.safe_point = None
        if not self.optimizer_step.group.is_first:
            self._go_back_with_first(state)
            return
        reason = rollback_refusal(state, bad, self.policy)
        losses = self.optimizer_step.losses
        was_searched = bad.step <= losses.watch.until_step
        try:
            if reason is not None:
                raise CheckpointError(reason)
            began = self.roll_back(state)
        except CheckpointError as error:
            raise TrainingDivergedError(self._evidence(state, bad, str(error))) from None
        losses.watch.until_step = 0 if bad.is_exact else bad.step
        skip_batch(state, bad, began, was_searched)
        self.checkpointer.save_decision(state)
        self._give_to_others(state)

    def _evidence(self, state: TrainingState, bad: BadStep, reason: str) -> str:
        """Save a bad state for inspection, and return a description of the bad loss."""
        kept = ""
        self.optimizer_step.losses.forget_sums()
        try:
            path = self.checkpointer.keep_evidence(state)
            kept = phrase("training.bad_state_kept", path=path) if path else ""
        except (StorageError, OSError) as error:
            kept = phrase("training.bad_state_not_kept", error=error)
        rows = f", rows {', '.join(shortened(bad.rows, 20))}" if bad.rows else ""
        advice = phrase("training.bad_loss_advice")
        return f"{bad}{rows}; {reason}{describe_attempts(state)}.{kept} {advice}"

    def after_torn_step(self, state: TrainingState, error: Exception) -> None:
        """Roll back if memory ran out in the middle of the optimizer's update.

        Such an update leaves a mixture of old and new weights.

        Raises:
            Exception: `error`, if it has another cause or there is no checkpoint to roll back to.
        """
        step = self.optimizer_step
        size = step.micro_batch_size(state)
        is_torn = step.safe_point is None and can_be_halved(error, size, size)
        may_shrink = self.policy.out_of_memory == "smaller"
        can_go_back = self.checkpointer.manager is not None or not step.group.is_first
        if not (is_torn and may_shrink and can_go_back):
            raise error
        message, torn_step = str(error), state.step + 1
        release_traceback(error)
        if not step.group.is_first:
            self._go_back_with_first(state)
            return
        try:
            began = self.roll_back(state)
        except CheckpointError as failure:
            error.add_note(str(failure))
            raise error from None
        step.shrink(state, size // 2)
        action = phrase(
            "training.rolled_back_torn_step",
            step=began,
            micro_batch_size=state.micro_batch_size,
        )
        record_recovery(state, RecoveryKind.OUT_OF_MEMORY, action, message, step=torn_step)
        self.checkpointer.save_decision(state)
        self._give_to_others(state)

    def _give_to_others(self, state: TrainingState) -> None:
        mirror(self.optimizer_step.group, state, self.optimizer_step)

    def _go_back_with_first(self, state: TrainingState) -> None:
        """Restore the state to which rank 0 has rolled back. Called on ranks other than 0.

        Raises:
            ProcessLostError: rank 0 could not roll back.
        """
        step = self.optimizer_step
        step.optimizer.zero_grad()
        free_memory(step.device)
        forget_unscaling(step.scaler, step.device)
        state.metrics, state.output, state.batch = {}, None, ()
        if is_sharded(state.model):
            self.checkpointer.roll_back_with_first(state)
            self.checkpointer.save_decision(state)
        mirror(step.group, state, step)

    def roll_back(self, state: TrainingState) -> int:
        """Restore the newest good checkpoint, but keep decisions made since then. Return its step.

        Raises:
            CheckpointError: there is no good checkpoint.
        """
        step = self.optimizer_step
        if self.checkpointer.manager is not None:
            self.checkpointer.announce(state, wait=True)
            step.optimizer.zero_grad()
            free_memory(step.device)
            forget_unscaling(step.scaler, step.device)
        skipped, recoveries = state.skipped, state.recoveries
        size = state.micro_batch_size
        state.checkpoint = self.checkpointer.roll_back(state)
        state.skipped, state.recoveries = skipped, recoveries
        state.micro_batch_size = min(size, state.micro_batch_size)
        state.metrics, state.output, state.batch = {}, None, ()
        return state.step

    def readable(self, state: TrainingState, error: BaseException) -> BaseException:
        """Return `error`, or a clearer error if the GPU has failed."""
        if not is_device_fault(error):
            return error
        try:
            # A checkpoint that was handed over before is still written.
            self.checkpointer.announce(state, wait=True)
        except Exception as failure:
            error.add_note(phrase("training.finishing_checkpoint_failed", error=named(failure)))
        return device_failed(error, state)

    def rescue(self, state: TrainingState, error: BaseException) -> None:
        """Restore the last state that is safe to save, and save it before the run ends.

        Nothing is saved after a GPU failure, after divergence, or if the weights were partly
        updated.
        """
        step = self.optimizer_step
        if step.safe_point is None or isinstance(error, DeviceFailedError):
            return
        step.optimizer.zero_grad()
        step.safe_point.restore(state, step.losses, step.device)
        if state.step == 0 or isinstance(error, TrainingDivergedError):
            return
        if self.checkpointer.manager is None or not step.losses.is_finite:
            return
        try:
            stopped = isinstance(error, KeyboardInterrupt)
            self.checkpointer.rescue(state, SaveKind.STOPPED if stopped else SaveKind.EMERGENCY)
        except Exception as failure:
            error.add_note(phrase("training.last_checkpoint_failed", error=named(failure)))
