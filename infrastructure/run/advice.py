"""Advice on how to improve a run, derived from its final metrics.

Loads no torch.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path

from infrastructure.backup.format.store import Store
from infrastructure.config.measures import LOSS
from infrastructure.core.errors import CheckpointError
from infrastructure.core.integers import ceil_div
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import format_number
from infrastructure.monitoring.drawing.quantity_names import name_of
from infrastructure.run.checkpoint_paths import best_of, by_step
from infrastructure.run.directory import BEST, RunDirectory
from infrastructure.run.record_types import AdviceRecord

WORSE_SHARE = 0.02  # a held-out loss this much above an earlier one is not due to chance
HARDLY_SHARE = 0.02
FEW_STEPS = 20
ENOUGH_STEPS = 60
FEW_WITHOUT_ANSWERS = 200  # after more steps, an exact match may be impossible


def advice_at_end(
    run: RunDirectory,
    best_metric: str,
    num_steps: int,
    num_epochs: int,
    before: Mapping[str, object],
    after: Mapping[str, object],
    *,
    best_is_greater: bool = False,
    is_cut_short: bool = False,
    freezes_new_weights: bool = False,
) -> list[AdviceRecord]:
    """Return at most one piece of advice, such as to use an earlier, better checkpoint.

    Args:
        best_metric: the metric by which checkpoints are compared, see `training.best_metric`.
        best_is_greater: whether a greater value of that metric is better.
        num_epochs: the number of trained epochs; 0 if unknown.
        before, after: metrics on held-out data before and after training; empty without held-out
            data.
        is_cut_short: whether `training.max_steps` ended the training.
        freezes_new_weights: whether only a LoRA was trained although the model has newly
            initialized weights, which stay random.
    """
    longer = _longer(num_steps, num_epochs, is_cut_short)
    if freezes_new_weights:  # a longer training would not help
        longer = phrase("run.advice_train_new_weights")
    was, now = before.get("eval_loss"), after.get("eval_loss")
    measured = now if best_metric == LOSS and isinstance(now, float) else None
    if best_metric != LOSS or measured is not None:
        earlier = _better(run, num_steps, best_metric, best_is_greater, measured)
        if earlier is not None:
            return [earlier]
    if is_cut_short and num_epochs < 1:
        text = phrase("run.advice_less_than_one_epoch", count=num_steps)
        return [{"text": text, "command": phrase("run.advice_raise_max_steps")}]
    if num_steps < FEW_STEPS:
        return [
            {
                "text": phrase("run.advice_few_steps", count=num_steps),
                "command": longer,
            }
        ]
    if isinstance(was, float) and isinstance(now, float) and was > 0:
        if now > was * (1 + WORSE_SHARE):
            text = phrase(
                "run.held_out_loss_rose", before=format_number(was), after=format_number(now)
            )
            return [
                {
                    "text": phrase("run.advice_learn_more_slowly", finding=text),
                    "command": phrase("run.lower_learning_rate"),
                }
            ]
        if now > was:
            # it rose so little that neither a higher nor a lower learning rate is more likely to
            # help
            digits = next((n for n in (4, 6) if format_number(was, n) != format_number(now, n)), 8)
            rose = phrase(
                "run.held_out_loss_rose_slightly",
                was=format_number(was, digits),
                now=format_number(now, digits),
            )
            return [
                {
                    "text": rose,
                    "command": phrase("run.another_learning_rate"),
                }
            ]
        if now > was * (1 - HARDLY_SHARE):
            fell = phrase(
                "run.held_out_loss_barely_fell", was=format_number(was), now=format_number(now)
            )
            return [
                {
                    "text": fell,
                    "command": longer,
                }
            ]
    exact = after.get("exact_match")
    if num_steps < FEW_WITHOUT_ANSWERS and isinstance(exact, Mapping) and exact.get("all") == 0:
        text = phrase("run.advice_no_exact_answer", count=num_steps)
        return [{"text": text, "command": longer}]
    return []


def _better(
    run: RunDirectory, num_steps: int, metric: str, is_greater: bool, now: float | None
) -> AdviceRecord | None:
    """Return advice to use an earlier checkpoint if it is clearly better than the final model.

    Args:
        now: the final model's value of the metric; by default, the value of the last checkpoint.
    """
    store = Store(run.checkpoints)
    try:
        best = best_of(store)
        scores = {step: store.read(path.stem).score for step, path in by_step(store).items()}
        step = num_steps if best is None else store.read(best.stem).step
    except (CheckpointError, OSError):
        return None
    score, now = scores.get(step), scores.get(num_steps) if now is None else now
    if step >= num_steps or score is None or now is None:
        return None
    if score > now - WORSE_SHARE * abs(now):
        return None
    name = name_of(metric.rpartition(":")[2]).title
    was, ended = (format_number(-n if is_greater else n) for n in (score, now))
    return {
        "text": phrase(
            "run.advice_earlier_step_better", step=step, metric=name, best=was, last=ended
        ),
        "command": f"temper export {shlex.quote(_relative(run.path))}@{BEST} FOLDER",
    }


def _longer(num_steps: int, num_epochs: int, is_cut_short: bool) -> str:
    if is_cut_short:  # more epochs would not change anything
        return phrase("run.advice_train_twice_as_long", steps=max(2 * num_steps, ENOUGH_STEPS))
    if num_epochs < 1 or num_steps < 1:
        return phrase("run.advice_more_epochs")
    epochs = max(2 * num_epochs, num_epochs * ceil_div(ENOUGH_STEPS, num_steps))
    return phrase("run.advice_number_of_epochs", epochs=epochs)


def _relative(path: Path) -> str:
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
