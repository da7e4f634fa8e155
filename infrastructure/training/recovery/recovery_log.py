"""One record for each error that a training got over, and the names of rows.

The records are part of the training's state: they travel in checkpoints, outlive a rollback,
and are what `logs/errors/errors.jsonl`, `summary.json` and the report show.
"""

import logging
import time
from collections.abc import Sequence

from infrastructure.core.errors import TemperError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact
from infrastructure.training.core.state import RecoveryKind, TrainingState

MAX_RECORDS = 200
MAX_ROWS = 50
MAX_CHARACTERS = 1000
IS_ROLLBACK = "is_rollback"
BAD_LOSSES = (RecoveryKind.NOT_FINITE, RecoveryKind.LOSS_SPIKE)

log = logging.getLogger(__name__)


def record_recovery(
    state: TrainingState,
    kind: str,
    action: str,
    message: str,
    rows: Sequence[str] = (),
    *,
    step: int | None = None,
    is_rollback: bool = False,
) -> None:
    """Keep a record of a recovery, and say it in the log.

    Args:
        kind: what went wrong; of what Temper itself gets over, a `RecoveryKind`.
        action: what was done about it.
        message: how the error reads; secrets in it are masked.
        rows: the rows that it came with.
        is_rollback: a bad loss was answered by a rollback that counts; see `num_rollbacks`.
    """
    step = state.step if step is None else step
    entry = error_record(step, kind, action, message, rows)
    if entry["kind"] in BAD_LOSSES:
        entry[IS_ROLLBACK] = is_rollback
    state.recoveries.append(entry)
    if len(state.recoveries) > MAX_RECORDS:
        state.recoveries.remove(_least_important(state.recoveries))
    named = f"; rows {', '.join(shortened(rows, 5))}" if rows else ""
    what = str(kind).replace("_", " ")
    log.warning("%s at step %d (%s): %s%s", what, step, entry["message"], action, redact(named))


def error_record(
    step: int, kind: str, action: str, message: str, rows: Sequence[str] = ()
) -> JsonObject:
    """An error and what was done about it, as JSON values; now, short, and without secrets."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "step": step,
        "kind": str(kind),
        "action": action,
        "message": clipped(message),
        "rows": [redact(row) for row in shortened(rows)],
    }


def clipped(message: str) -> str:
    """An error's text as it may be written down: without secrets, and not without end."""
    text = redact(message)
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def num_rollbacks(state: TrainingState) -> int:
    """How often a bad loss has sent this run back."""
    return sum(map(_is_rollback, state.recoveries))


def shortened(rows: Sequence[str], most: int = MAX_ROWS) -> list[str]:
    """The first `most` rows, and how many more there are."""
    more = len(rows) - most
    return [*rows[:most], f"and {more} more"] if more > 0 else list(rows)


def row_names(data: object, epoch: int, example: int, count: int) -> list[str]:
    """The names of `count` examples of an epoch: file and line, where the data source knows them.

    Args:
        data: a `DataSource`.
        example: position of the first of them in the epoch.
    """
    places = getattr(data, "places", None)
    if places is not None:
        try:
            return list(places(epoch, example, count))
        except (TemperError, OSError, ValueError) as error:
            log.warning(phrase("training.row_names_unavailable", error=error))
    return [f"example {number} of epoch {epoch}" for number in range(example, example + count)]


def _is_rollback(entry: JsonObject) -> bool:
    return bool(entry.get(IS_ROLLBACK, _was_rollback(entry)))


def _was_rollback(entry: JsonObject) -> bool:
    """In a checkpoint of a version before the entry said so itself, its sentence does."""
    return entry["kind"] in BAD_LOSSES and str(entry["action"]).startswith("went back")


def _least_important(entries: list[JsonObject]) -> JsonObject:
    """The oldest one that nothing is counted by."""
    return next((entry for entry in entries if not _is_rollback(entry)), entries[0])
