"""The current state of a run: position, phase, and everything else that hooks can read."""

import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch

from infrastructure.core.json_text import JsonObject
from infrastructure.training.core.metric_accumulator import Sum


@dataclass
class Position:
    """The position of a run in its data, always between two optimizer steps.

    Three integers suffice, because the order of the data can be computed again. `example` counts
    the examples of this epoch that are already consumed, not batches, so a run could resume with
    another batch size.
    """

    phase: int = 0
    epoch: int = 0
    example: int = 0


@dataclass
class Phase:
    """A part of a run with one set of trainable parameters.

    Attributes:
        name: shown to the user.
        num_epochs: passes over the data in this phase.
        parameters: names of the trainable parameters. None: all parameters in the optimizer.
        begins_anew: this phase trains another model, so its losses are not compared with those of
            earlier phases.
    """

    name: str = "train"
    num_epochs: int = 1
    parameters: frozenset[str] | None = None
    begins_anew: bool = False


@dataclass
class StepOutput:
    """The result of one micro-batch.

    Attributes:
        loss_sum: sum of the losses of the supervised items, a detached scalar on the device.
        num_items: supervised items (tokens, for a language model) in the micro-batch.
        batch: the micro-batch, as the adapter prepared it.
    """

    loss_sum: torch.Tensor
    num_items: int
    batch: Mapping[str, Any] = field(default_factory=dict, repr=False)


class RecoveryKind(StrEnum):
    """Kinds of problems that a run recovered from.

    The values are stored in checkpoints, logs and the summary.
    """

    OUT_OF_MEMORY = "out_of_memory"
    NOT_FINITE = "not_finite"
    LOSS_SPIKE = "loss_spike"
    SAVE_REFUSED = "save_refused"
    SHORT_OF_MEMORY = "short_of_memory"


@dataclass(frozen=True)
class SkippedBatch:
    """A batch that is not trained on, because its loss was bad.

    Attributes:
        step: the optimizer step that is skipped. It still counts as a step.
        epoch, example: where the batch begins in the data.
        num_examples: number of examples in the batch.
        kind: the reason: `RecoveryKind.NOT_FINITE` or `LOSS_SPIKE`.
        rows: names of the batch's rows. If `is_searched` is True, only the rows that cause the bad
            loss.
        is_searched: whether each row was tried separately.
    """

    step: int
    epoch: int
    example: int
    num_examples: int
    kind: str
    rows: tuple[str, ...] = ()
    is_searched: bool = False


class StopReason(StrEnum):
    """The reason why a run stops before its last step."""

    REQUESTED = "requested"  # a hook, such as early stopping, or the program around it
    SIGNAL = "signal"
    COMMAND = "command"  # temper stop, or its equivalent in a notebook
    DEADLINE = "deadline"  # the session ends soon
    NOTHING_LEARNED = "nothing_learned"  # steps no longer change any weight


@dataclass(frozen=True)
class StepRewards:
    """Results of the reward functions for the latest step.

    Attributes:
        num_without: consecutive steps, including this one, in which no reward function returned a
            finite number.
        num_tied: consecutive steps in which all answers to each prompt had the same reward, so that
            there was nothing to learn from comparing them.
    """

    num_without: int = 0
    num_tied: int = 0


@dataclass
class TrainingState:
    """The state of a training run that hooks can read and extensions can change.

    Attributes:
        step: optimizer steps done.
        total_steps: optimizer steps of the whole training, all phases.
        loss: mean loss per supervised item of the last finished step; may be NaN.
        grad_norm: gradient norm of the last step; exactly 0 if all gradients are 0. None: unknown,
            or the batch was skipped.
        learning_rate: learning rate of the last step.
        rewards: results of the reward functions in the last step. None: there are no rewards.
        metrics: metrics of the last step (`learning_rate`, `grad_norm`, `tokens`, `seconds`, ...).
        evaluation: metrics of the last evaluation.
        best_metric: the metric that selects the best checkpoint; best_is_greater: its direction.
        data_wait_seconds: time that the steps of this process waited for their data.
        num_processes: number of processes that share each batch.
        batch: the examples of the latest step, as the data source returned them.
        micro_batch_size: examples per forward pass; may shrink after running out of memory.
        step_is_ending: the last step's weights are updated, but its events, evaluation or change of
            epoch are still to be done. A resumed run does them first.
        evaluated_step: the step whose weights `evaluation` measured; -1 before the first.
        measured_on: the held-out rows of `evaluation` and `best_evaluation_loss`. None: unknown.
        skipped: batches that are not trained on.
        recoveries: one JSON object for each error that the run recovered from: time, step, kind,
            action, message, rows.
        must_save: a hook has made a decision that depends on the time. The run is saved at the next
            opportunity, so that a resumed run repeats the decision.
        stop_reason: why training is to end at the next step boundary, or None.
        stop_message: the stop reason as text for the user.
        is_interrupted: the stop was requested while steps are left to train.
        stop_signal: the name of the signal that stopped the run, if any.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None = None
    position: Position = field(default_factory=Position)
    phase: Phase = field(default_factory=Phase)
    step: int = 0
    total_steps: int = 0
    num_examples: int = 0
    num_tokens: int = 0
    data_wait_seconds: float = 0.0
    num_processes: int = 1
    micro_batch_size: int = 1
    batch: Sequence[object] = ()
    output: StepOutput | None = None
    loss: float = float("nan")
    grad_norm: Sum | None = None
    learning_rate: float = 0.0
    rewards: StepRewards | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    evaluation: dict[str, float] = field(default_factory=dict)
    best_evaluation_loss: float = float("inf")
    best_metric: str = "eval_loss"
    best_is_greater: bool = False
    checkpoint: Path | None = None
    error: BaseException | None = None
    step_is_ending: bool = False
    evaluated_step: int = -1
    measured_on: str | None = None
    skipped: list[SkippedBatch] = field(default_factory=list)
    recoveries: list[JsonObject] = field(default_factory=list)
    must_save: bool = False
    stop_reason: StopReason | None = None
    stop_message: str | None = None
    is_interrupted: bool = False
    stop_signal: str | None = None

    def stop(self, message: str, reason: StopReason = StopReason.REQUESTED) -> None:
        """Ask the loop to end after the current step. Only the first reason is recorded."""
        if self.stop_reason is None:
            self.stop_reason, self.stop_message = reason, message

    def interrupt(
        self,
        message: str,
        reason: StopReason = StopReason.REQUESTED,
        signal_number: int | None = None,
    ) -> None:
        """Ask the loop to end before all steps are trained. A long evaluation is aborted."""
        if self.stop_reason is None and signal_number is not None:
            self.stop_signal = signal.Signals(signal_number).name
        self.stop(message, reason)
        self.is_interrupted = True

    @property
    def is_cut_short(self) -> bool:
        """True if the run is interrupted before its last step."""
        return self.is_interrupted and self.step < self.total_steps

    def measure_on(self, rows: str | None) -> None:
        """Set the held-out rows for all further evaluations, and drop metrics of other rows.

        None means that the rows are unknown, and changes nothing.
        """
        if rows is None:
            return
        if self.measured_on not in (None, rows):
            self.evaluation, self.evaluated_step = {}, -1
            self.best_evaluation_loss = math.inf
        self.measured_on = rows

    @property
    def score(self) -> float | None:
        """The metric that selects the best checkpoint, for the current weights; lower is better.

        A metric for which greater is better is negated. None: not measured at these weights.
        """
        value = self.evaluation.get(self.best_metric) if self.evaluated_step == self.step else None
        if value is None or not math.isfinite(value):
            return None
        return -value if self.best_is_greater else value

    def every(self, num_steps: int | None) -> bool:
        """Return whether the current step is a multiple of `num_steps`. None and 0 give False."""
        return bool(num_steps) and self.step > 0 and self.step % int(num_steps or 1) == 0
