"""The losses of the steps since the last record.

They are summed on the device, read when a record is due, and refused if they are bad. A bad loss is
raised, never averaged away.
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
    """The losses of the steps, and the decision whether a run may continue from them.

    Args:
        recovery: the settings about a loss that rises suddenly.
        data: names the rows of a bad batch.
        device: where the sums are stored.
        has_scaler: fp16: the scaler handles overflows of the gradients.

    Attributes:
        sums: the sums of the steps since the last record.
        watch: judges the losses that were read.
        batch_at: where the last batch of this process began; None before the first.
        last_step: the sums of the last step; None if it was skipped.
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
        """Return the state that a checkpoint holds, as JSON values."""
        return {"log": self.sums.state_dict(), "watch": self.watch.state_dict()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.sums = MetricAccumulator(**saved["log"])
        if "watch" in saved:
            self.watch.load_state_dict(saved["watch"])
        self.batch_at = self.last_step = None

    def begin_step(self, position: Position) -> None:
        """Attribute the next losses to the batch that begins at `position`."""
        self.batch_at = replace(position)

    def add(self, step: MetricAccumulator) -> None:
        """Add the sums of one step."""
        self.sums.add(step)
        self.last_step = replace(step, num_steps=1)

    def pass_over(self) -> None:
        """Record that the step's batch is skipped and has no loss to judge."""
        self.last_step = None

    def forget_sums(self) -> None:
        """Drop the sums, which may not be finite and are no longer read."""
        self.sums = MetricAccumulator()

    def read(self, state: TrainingState) -> None:
        """Read the sums from the device into `state.metrics` and start new ones; NaN stays NaN.

        Raises:
            BadLossError: the loss is not finite, or is a spike (the scaler handles fp16 overflows,
                which show in the gradient norm, not in the loss).
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
        """Refuse a loss that is bad, or record it."""
        if not sums.is_finite(self.has_scaler):
            raise self._error(RecoveryKind.NOT_FINITE, state, sums)
        if self.watch.observe(sums.loss, sums.num_items):
            spike = self._error(RecoveryKind.LOSS_SPIKE, state, sums)
            if self.recovery.loss_spike != "note":
                raise spike
            action = phrase("training.loss_spike_recorded")
            record_recovery(state, RecoveryKind.LOSS_SPIKE, action, spike.bad.numbers)

    def check_last_step(self, state: TrainingState) -> None:
        """Check the loss of the last step; used while a bad batch is searched for.

        The log does not change.

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
        """Check the sums before evaluating or saving; good sums stay unread until the next record.

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
    """Return the bytes that this process uses: the GPU's peak since the start, or the resident
    set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resident_bytes()
