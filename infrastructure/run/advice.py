"""What a person may want to do after a training that went worse than it could: what the numbers at
its end say. Loads no torch.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path

from infrastructure.backup.format.store import Store
from infrastructure.config.measures import LOSS
from infrastructure.core.errors import CheckpointError
from infrastructure.core.integers import ceil_div
from infrastructure.monitoring.drawing.formatting import format_number
from infrastructure.monitoring.drawing.quantity_names import name_of
from infrastructure.run.checkpoint_paths import best_of, by_step
from infrastructure.run.directory import BEST, RunDirectory
from infrastructure.run.record_types import AdviceRecord

WORSE_SHARE = 0.02  # a held-out loss this much above an earlier one is no chance
HARDLY_SHARE = 0.02
FEW_STEPS = 20
ENOUGH_STEPS = 60


def advice_at_end(
    run: RunDirectory,
    best_metric: str,
    num_steps: int,
    num_epochs: int,
    before: Mapping[str, object],
    after: Mapping[str, object],
    *,
    is_cut_short: bool = False,
) -> list[AdviceRecord]:
    """One line at most: an earlier checkpoint is better, or hardly anything was learnt.

    Args:
        best_metric: what checkpoints are scored by, see `training.best_metric`.
        num_epochs: that were trained; 0 where that is not known.
        before, after: numbers on held-out data; empty where nothing is held out.
        is_cut_short: `training.max_steps` ended it.
    """
    was, now = before.get("eval_loss"), after.get("eval_loss")
    if isinstance(now, float) and best_metric == LOSS and (earlier := _better(run, num_steps, now)):
        return [earlier]
    if best_metric != LOSS and (earlier := _better_by(run, num_steps, best_metric)):
        return [earlier]
    if is_cut_short and num_epochs < 1:
        text = f"{num_steps} steps are few, less than one epoch; to train longer"
        return [{"text": text, "command": "a higher --max-steps, or none"}]
    if num_steps < FEW_STEPS:
        return [
            {
                "text": f"{num_steps} steps are few; to train longer, or to learn faster",
                "command": _longer(num_steps, num_epochs),
            }
        ]
    if isinstance(was, float) and isinstance(now, float) and was > 0:
        if now > was * (1 + WORSE_SHARE):
            text = f"The held-out loss rose, from {format_number(was)} to {format_number(now)}"
            return [{"text": f"{text}; to learn more slowly", "command": "a lower --learning-rate"}]
        if now > was * (1 - HARDLY_SHARE):
            text = f"The held-out loss hardly fell, from {format_number(was)} to"
            return [
                {
                    "text": f"{text} {format_number(now)}; to learn more",
                    "command": _longer(num_steps, num_epochs),
                }
            ]
    return []


def _better_by(run: RunDirectory, num_steps: int, metric: str) -> AdviceRecord | None:
    """Of a kept checkpoint that is clearly better by another measure than the one at the end, which
    was measured, too. Scores are lower where they are better."""
    store = Store(run.checkpoints)
    try:
        best = best_of(store)
        scores = {step: store.read(path.stem).score for step, path in by_step(store).items()}
        step = None if best is None else store.read(best.stem).step
    except (CheckpointError, OSError):
        return None
    now, score = scores.get(num_steps), None if step is None else scores[step]
    if score is None or now is None or score > now - WORSE_SHARE * abs(now):
        return None
    name = name_of(metric.rpartition(":")[2]).title
    values = f"({format_number(abs(score))}), and is {format_number(abs(now))} now"
    return {
        "text": f"The held-out {name} was best at step {step} {values}; the model of that step",
        "command": f"temper export {shlex.quote(_relative(run.path))}@{BEST} FOLDER",
    }


def _better(run: RunDirectory, num_steps: int, now: float) -> AdviceRecord | None:
    """Of a kept checkpoint whose held-out loss is lower than that at the end."""
    store = Store(run.checkpoints)
    try:
        best = best_of(store)
        if best is None:
            return None
        manifest = store.read(best.stem)
    except (CheckpointError, OSError):
        return None
    score = manifest.score
    if score is None or manifest.step >= num_steps or now <= score * (1 + WORSE_SHARE):
        return None
    lowest = f"The held-out loss was lowest at step {manifest.step} ({format_number(score)})"
    return {
        "text": f"{lowest}, and is {format_number(now)} now; the model of that step",
        "command": f"temper export {shlex.quote(_relative(run.path))}@{BEST} FOLDER",
    }


def _longer(num_steps: int, num_epochs: int) -> str:
    if num_epochs < 1 or num_steps < 1:
        return "more --epochs, or a higher --learning-rate"
    epochs = max(2 * num_epochs, num_epochs * ceil_div(ENOUGH_STEPS, num_steps))
    return f"--epochs {epochs}, or a higher --learning-rate"


def _relative(path: Path) -> str:
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
