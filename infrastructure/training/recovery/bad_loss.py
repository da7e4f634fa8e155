"""Decisions and messages about bad losses, and the batches that are skipped because of them."""

import math
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.optim.lr_scheduler import LambdaLR

from infrastructure.config.sections.recovery_config import RecoveryConfig
from infrastructure.core.errors import DeviceFailedError
from infrastructure.core.messages import Setting, phrase
from infrastructure.models.preserve import preserve
from infrastructure.optimization.device_errors import is_out_of_memory
from infrastructure.training.core.metric_accumulator import MetricAccumulator
from infrastructure.training.core.state import Position, RecoveryKind, SkippedBatch, TrainingState
from infrastructure.training.forward.gradient_accumulation import one_step
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter
from infrastructure.training.recovery.loss_spikes import BadStep, LossSpikeDetector
from infrastructure.training.recovery.recovery_log import (
    BAD_LOSSES,
    num_rollbacks,
    record_recovery,
    row_names,
)
from infrastructure.training.strategies.base_strategy import TrainingStrategy

MAX_ROLLBACKS = 3  # for bad losses, in one run


def bad_step(
    kind: RecoveryKind,
    state: TrainingState,
    sums: MetricAccumulator,
    batch_at: Position | None,
    data: DataSource,
) -> BadStep:
    """Describe the steps in `sums`, whose loss is bad.

    Args:
        batch_at: where the batch of the last step began. None if this process does not know it.
    """
    bad = BadStep(kind, state.step, sums.loss, float(sums.grad_norm), sums.num_steps)
    if sums.num_steps != 1 or batch_at is None or _skipped_at(state, batch_at) is not None:
        return bad
    epoch, example, count = batch_at.epoch, batch_at.example, len(state.batch)
    rows = tuple(row_names(data, epoch, example, count))
    return replace(bad, epoch=epoch, example=example, num_examples=count, rows=rows)


def rollback_refusal(state: TrainingState, bad: BadStep, policy: RecoveryConfig) -> str | None:
    """Return the reason why a bad loss ends the run. None if Temper rolls back instead."""
    is_spike = bad.kind == RecoveryKind.LOSS_SPIKE
    chosen = policy.loss_spike if is_spike else policy.not_finite
    if chosen != "roll_back":
        return phrase("training.policy_is", policy=Setting(f"training.recovery.{bad.kind}", chosen))
    if num_rollbacks(state) >= MAX_ROLLBACKS:
        return phrase("training.max_rollbacks_reached", limit=MAX_ROLLBACKS)
    return None


def skip_batch(state: TrainingState, bad: BadStep, began: int, was_searched: bool) -> None:
    """Mark the bad batch as skipped, if it is known, and record the rollback to step `began`.

    Args:
        was_searched: True if the rollback that searched for this batch is already counted.
    """
    action = phrase("training.rolled_back_to_search", first=began, last=bad.step)
    if bad.is_exact:
        batch = (bad.step, bad.epoch, bad.example, bad.num_examples, bad.kind, bad.rows)
        state.skipped.append(SkippedBatch(*batch))
        action = phrase("training.rolled_back_to_skip", start=began, step=bad.step)
        if was_searched:
            action = phrase("training.batch_found", action=action)
    counts = not (bad.is_exact and was_searched)
    step = bad.step
    record_recovery(state, bad.kind, action, bad.numbers, bad.rows, step=step, is_rollback=counts)


def describe_attempts(state: TrainingState) -> str:
    """Describe the recoveries that were tried before the run gave up."""
    done = [
        f"step {entry['step']}: {entry['action']}"
        for entry in state.recoveries
        if entry["kind"] in BAD_LOSSES
    ]
    return phrase("training.recovery_attempts", attempts="; ".join(done)) if done else ""


def skipped_here(state: TrainingState) -> SkippedBatch | None:
    """Return the entry for the batch at the current position if it is to be skipped; otherwise
    None.
    """
    return _skipped_at(state, state.position)


def _skipped_at(state: TrainingState, position: Position) -> SkippedBatch | None:
    here = (position.epoch, position.example)
    return next((batch for batch in state.skipped if (batch.epoch, batch.example) == here), None)


def name_bad_rows(
    state: TrainingState,
    data: DataSource,
    adapter: ModelAdapter,
    strategy: TrainingStrategy,
    watch: LossSpikeDetector,
) -> None:
    """Find the rows that caused the bad loss of the skipped batch, and record their names.

    This happens when the batch is skipped for the first time, because the weights are not yet
    damaged at that moment.
    """
    skipped = skipped_here(state)
    if skipped is None or skipped.is_searched:
        return
    examples: Sequence[object] = state.batch
    assert state.optimizer is not None
    bad = find_bad_rows(state.model, adapter, strategy, state.optimizer, examples, watch)
    names = row_names(data, skipped.epoch, skipped.example, len(examples))
    rows = tuple(names[index] for index in bad) or skipped.rows
    index = state.skipped.index(skipped)
    state.skipped[index] = replace(skipped, rows=rows, is_searched=True)
    verdict = phrase("training.rows_bad_alone" if bad else "training.no_single_row_is_bad")
    record_recovery(
        state, skipped.kind, phrase("training.bad_batch_skipped"), verdict, rows, step=skipped.step
    )


def advance(scheduler: LambdaLR) -> None:
    """Advance the schedule without an optimizer step, and hide torch's warning about it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*before.*optimizer.step")
        scheduler.step()


def device_failed(error: BaseException, state: TrainingState) -> DeviceFailedError:
    """Return an error that says that the GPU failed, and what to do next."""
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
    if state.checkpoint is None:
        saved = phrase("training.gpu_failed_before_first_save")
    else:
        run = state.checkpoint.parent.parent.parent
        saved = phrase("training.gpu_failed_after_save", checkpoint=state.checkpoint, run=run)
    return DeviceFailedError(
        phrase(
            "training.gpu_failed",
            step=state.step + 1,
            cause=first_line,
            what_next=saved,
        )
    )


def find_bad_rows(
    model: torch.nn.Module,
    adapter: ModelAdapter,
    strategy: TrainingStrategy,
    optimizer: torch.optim.Optimizer,
    examples: Sequence[object],
    watch: LossSpikeDetector,
) -> list[int]:
    """Return which examples have a bad loss or gradient, by computing each one separately.

    Returns:
        The indices of the examples whose own loss or gradient is bad. Empty if there are none, or
        if even a single example does not fit into memory.
    """
    losses: list[float] = []
    try:
        with preserve(model, random=adapter.device, modes=True):
            model.eval()
            for example in examples:
                optimizer.zero_grad()
                output = one_step(model, adapter, strategy, optimizer, [example])
                loss = float(output.loss_sum) / max(1, output.num_items)
                losses.append(loss if _gradients_are_finite(model) else math.nan)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return []
    finally:
        optimizer.zero_grad()
    usual = [loss for loss in losses if math.isfinite(loss)]
    limit = watch.limit(num_items=1)  # single rows vary a lot before there is a median
    limit = max(limit, watch.factor * statistics.median(usual)) if usual else math.inf
    return [i for i, loss in enumerate(losses) if not math.isfinite(loss) or loss > limit]


def _gradients_are_finite(model: torch.nn.Module) -> bool:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return bool(torch.isfinite(torch.nn.utils.get_total_norm(gradients)))
