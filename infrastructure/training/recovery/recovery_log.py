"""Records of the errors from which a run recovered, and names of rows.

The records are part of the training state. They are saved in checkpoints, survive a rollback, and
are shown in `logs/errors/errors.jsonl`, `summary.json` and the report.
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
    """Add a record of a recovery to the training state, and log it.

    Args:
        kind: what went wrong. A `RecoveryKind` if Temper itself recovered from it.
        action: what was done about it.
        message: the text of the error. Secrets in it are masked.
        rows: the rows that were involved.
        is_rollback: the recovery was a rollback that counts towards the limit of rollbacks.
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
    """Return an error, the action taken and the current time as JSON values.

    Texts are shortened, and secrets are masked.
    """
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "step": step,
        "kind": str(kind),
        "action": action,
        "message": clipped(message),
        "rows": [redact(row) for row in shortened(rows)],
    }


def clipped(message: str) -> str:
    """Return an error's text with secrets masked and at most `MAX_CHARACTERS` characters."""
    text = redact(message)
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def num_rollbacks(state: TrainingState) -> int:
    """Return the number of rollbacks after a bad loss that this run has made."""
    return sum(map(_is_rollback, state.recoveries))


def shortened(rows: Sequence[str], most: int = MAX_ROWS) -> list[str]:
    """Return the first `most` rows, followed by an entry with the number of further rows."""
    more = len(rows) - most
    return [*rows[:most], f"and {more} more"] if more > 0 else list(rows)


def row_names(data: object, epoch: int, example: int, count: int) -> list[str]:
    """Return the names of `count` examples of an epoch: file and line, or their position.

    Args:
        data: a `DataSource`.
        example: position of the first example in the epoch.
    """
    places = getattr(data, "places", None)
    if places is not None:
        try:
            return list(places(epoch, example, count))
        except (TemperError, OSError, ValueError) as error:
            log.warning(phrase("training.row_names_unavailable", error=error))
    return [
        phrase("training.row_place", number=number, epoch=epoch)
        for number in range(example, example + count)
    ]


def _is_rollback(entry: JsonObject) -> bool:
    return bool(entry.get(IS_ROLLBACK, _was_rollback(entry)))


def _was_rollback(entry: JsonObject) -> bool:
    """Recognize a rollback by its text, in checkpoints of older versions of Temper."""
    return entry["kind"] in BAD_LOSSES and str(entry["action"]).startswith("went back")


def _least_important(entries: list[JsonObject]) -> JsonObject:
    """Return the oldest entry that is not a rollback. If all entries are rollbacks, return the
    oldest.
    """
    return next((entry for entry in entries if not _is_rollback(entry)), entries[0])
