"""Detection of bad losses in the steps since the last metrics record.

Losses are summed on the device, and the sum is read when a record is due. A bad loss in the sum
raises an error.
"""

from dataclasses import replace
from typing import Any

import torch

from infrastructure.config.sections.recovery_config import RecoveryConfig
from infrastructure.core.messages import phrase
from infrastructure.core.process_memory import resident_bytes
from infrastructure.training.core.metric_accumulator import MetricAccumulator
from infrastructure.training.core.state import Position, RecoveryKind, TrainingState
from infrastructure.training.model_adapters.base_adapter import DataSource
from infrastructure.training.recovery.bad_loss import bad_step
from infrastructure.training.recovery.loss_spikes import BadLossError, LossSpikeDetector
from infrastructure.training.recovery.recovery_log import record_recovery


class LossJudge:
    """A judge of training losses, which decides whether a run may continue.

    Args:
        recovery: settings about loss spikes.
        data: names the rows of a bad batch.
        device: where the sums are stored.
        has_scaler: fp16 is used with a loss scaler, which handles gradient overflows.

    Attributes:
        sums: sums over the steps since the last record.
        watch: detects spikes in the losses.
        batch_at: where the last batch of this process began; None before the first.
        last_step: loss and metrics of the last step; None if it was skipped.
    """

    def __init__(
        self, recovery: RecoveryConfig, data: DataSource, device: torch.device, has_scaler: bool
    ) -> None:
        self.recovery = recovery
        self.data = data
        self.device = device
        self.has_scaler = has_scaler
        self.sums = MetricAccumulator()
        self.watch = LossSpikeDetector()
        self.batch_at: Position | None = None
        self.last_step: MetricAccumulator | None = None

    def state_dict(self) -> dict[str, object]:
        """Return the state to save in a checkpoint, as JSON values."""
        return {"log": self.sums.state_dict(), "watch": self.watch.state_dict()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.sums = MetricAccumulator(**saved["log"])
        if "watch" in saved:
            self.watch.load_state_dict(saved["watch"])
        self.batch_at = self.last_step = None

    def begin_step(self, position: Position) -> None:
        """Record that the next step's batch begins at `position`."""
        self.batch_at = replace(position)

    def add(self, step: MetricAccumulator) -> None:
        """Add the loss and metrics of one step."""
        self.sums.add(step)
        self.last_step = replace(step, num_steps=1)

    def pass_over(self) -> None:
        """Record that the current step has no loss, because its batch is skipped."""
        self.last_step = None

    def forget_sums(self) -> None:
        """Reset the sums, because they may not be finite."""
        self.sums = MetricAccumulator()

    def read(self, state: TrainingState) -> None:
        """Move the sums from the device to `state.metrics`, and check their mean loss.

        Raises:
            BadLossError: the loss is not finite, or is a spike. Gradient overflows in fp16 do not
                count.
        """
        sums, self.sums = self.sums, MetricAccumulator()
        state.metrics = {}
        if sums.num_steps == 0:  # all of them were skipped
            return
        state.loss = sums.loss
        state.metrics = {
            "loss": state.loss,
            "learning_rate": sums.learning_rate,
            "grad_norm": float(sums.grad_norm),
            "tokens": float(state.num_tokens),
            "seconds": sums.seconds,
            "tokens_per_second": sums.num_tokens / max(sums.seconds, 1e-9),
            "memory_bytes": float(memory_in_use_bytes(self.device)),
        }
        self._judge(state, sums)

    def _judge(self, state: TrainingState, sums: MetricAccumulator) -> None:
        """Raise if the loss is bad; otherwise record it."""
        if not sums.is_finite(self.has_scaler):
            raise self._error(RecoveryKind.NOT_FINITE, state, sums)
        if self.watch.observe(sums.loss, sums.num_items):
            spike = self._error(RecoveryKind.LOSS_SPIKE, state, sums)
            if self.recovery.loss_spike != "note":
                raise spike
            action = phrase("training.loss_spike_recorded")
            record_recovery(state, RecoveryKind.LOSS_SPIKE, action, spike.bad.numbers)

    def check_last_step(self, state: TrainingState) -> None:
        """Check the loss of the last step, while searching for a bad batch step by step.

        This does not affect metrics records.

        Raises:
            BadLossError: the loss of the last step is bad.
        """
        step = self.last_step
        if step is None or state.step > self.watch.until_step:
            return
        is_number = step.is_finite(self.has_scaler)
        if not is_number or step.loss > self.watch.limit(step.num_items):
            kind = RecoveryKind.LOSS_SPIKE if is_number else RecoveryKind.NOT_FINITE
            raise self._error(kind, state, step)

    def check_sums(self, state: TrainingState) -> None:
        """Check that the losses since the last record are finite, before evaluating or saving.

        Raises:
            BadLossError: the steps since the last record have a bad loss.
        """
        if not self.is_finite:
            self.read(state)

    @property
    def is_finite(self) -> bool:
        """True if the sums are finite. Synchronizes with the device."""
        return self.sums.is_finite(self.has_scaler)

    def _error(
        self, kind: RecoveryKind, state: TrainingState, sums: MetricAccumulator
    ) -> BadLossError:
        return BadLossError(bad_step(kind, state, sums, self.batch_at, self.data))


def memory_in_use_bytes(device: torch.device) -> int:
    """Return the peak GPU memory since the start; on a CPU, the process's current resident
    memory.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resident_bytes()
