"""Plain-text tables for the terminal, and the table at the end of a run: before → after.

Columns are aligned by the width of characters in a terminal. Control characters are replaced. This
module does not depend on colors.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size

from infrastructure.monitoring.drawing.formatting import format_number, format_share, printable
from infrastructure.monitoring.drawing.quantity_names import (
    QuantityName,
    in_order,
    name_of,
    without_ties,
)

MAX_CELL_WIDTH = 60
UNKNOWN = "–"
HELD_OUT_LOSS = "held-out loss"
EXACT_MATCH = "exact match"
PLAIN_LOSS = "cross_entropy"


def held_out_loss(loss: object = None) -> str:
    """Return the name of the held-out loss, with the loss function if it is not the default.

    Args:
        loss: the loss function, as `training.loss` names it, or None if unknown.
    """
    is_plain = loss is None or loss == PLAIN_LOSS
    return HELD_OUT_LOSS if is_plain else f"{HELD_OUT_LOSS} ({printable(loss)})"


def render_table(
    headings: Sequence[str], rows: Sequence[Sequence[object]], max_cell_width: int = MAX_CELL_WIDTH
) -> str:
    """Return a text table. The first column is left-aligned, the others are right-aligned."""
    cells = [[_fit(printable(cell), max_cell_width) for cell in row] for row in (headings, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(_padded, row, widths, range(len(row)))).rstrip() for row in cells]
    rule = "  ".join("─" * width for width in widths)
    return "\n".join([lines[0], rule, *lines[1:]])


def _fit(text: str, width: int) -> str:
    """Return `text`, cut with an ellipsis to at most `width` columns of a terminal."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def _padded(text: str, width: int, column: int) -> str:
    space = " " * (width - cell_len(text))
    return text + space if column == 0 else space + text


def before_after_rows(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    loss: object = None,
    *,
    has_details: bool = True,
) -> list[tuple[str, str, str, str]]:
    """Return rows (name, before, after, change) of metrics. Held-out loss comes first.

    Args:
        before: `{"eval_loss": float, "exact_match": {task: share, …, "all": share}}`. Missing parts
            are shown as a dash. Other metrics get a row each, with their name.
        after: the same metrics after training.
        loss: see `held_out_loss`.
        has_details: whether to include metrics that few users need.
    """
    before, after = without_ties(before), without_ties(after)
    rows = []
    # Training on rewards has a loss of about 0, whatever was learned.
    if "eval_reward" not in after and ("eval_loss" in before or "eval_loss" in after):
        numbers = _loss_row(before.get("eval_loss"), after.get("eval_loss"))
        rows.append((held_out_loss(loss), *numbers))
    others = [key for key in dict.fromkeys([*before, *after]) if key != "eval_loss"]
    for key in in_order(others):
        name = name_of(key)
        is_number = isinstance(after.get(key, before.get(key)), int | float)
        if is_number and (has_details or not name.is_detail):
            rows.append(_number_row(name, before.get(key), after.get(key)))
    matches = before.get("exact_match") or {}, after.get("exact_match") or {}
    tasks = list(dict.fromkeys([*matches[0], *matches[1]]))
    for task in sorted(tasks, key=lambda task: task != "all"):
        what = EXACT_MATCH if task == "all" else f"  {printable(task)}"
        rows.append(_share_row(what, matches[0].get(task), matches[1].get(task)))
    return rows


def _shown(value: float | None, format_value: Callable[[float], str] = format_number) -> str:
    return UNKNOWN if value is None else format_value(value)


def _loss_row(before: float | None, after: float | None) -> tuple[str, str, str]:
    change = math.nan if before is None or after is None or before <= 0 else after / before - 1
    return _shown(before), _shown(after), _relative(change) if math.isfinite(change) else ""


def _relative(change: float) -> str:
    """Format a relative change in percent.

    -100% is shown only if a value becomes exactly zero. A small change is shown with two decimals
    if it would be zero with one decimal.
    """
    if change == -1:
        return "-100%"
    texts = [f"{100 * change:+z.{digits}f}" for digits in (1, 2, 3, 4)]
    if change > -0.5:
        return f"{next((text for text in texts[:2] if float(text)), texts[0])}%"
    return next((f"{text}%" for text in texts if float(text) != -100), "< -99.9999%")


def _number_row(
    name: QuantityName, before: float | None, after: float | None
) -> tuple[str, str, str, str]:
    if name.is_share:
        return _share_row(name.with_direction, before, after)
    difference = float("nan") if before is None or after is None else after - before
    change = f"{'+' if difference >= 0 else ''}{format_number(difference)}"
    has_change = name.better and math.isfinite(difference)
    return name.with_direction, _shown(before), _shown(after), change if has_change else ""


def _share_row(what: str, before: float | None, after: float | None) -> tuple[str, str, str, str]:
    difference = float("nan") if before is None or after is None else after - before
    change = f"{100 * difference:+z.1f} points" if math.isfinite(difference) else ""
    return what, _shown(before, format_share), _shown(after, format_share), change


def before_after_table(
    before: Mapping[str, object], after: Mapping[str, object], loss: object = None
) -> str:
    """Return the table of metrics before and after training, or "" if there are none."""
    rows = before_after_rows(before, after, loss, has_details=False)
    return render_table(["", "before", "after", "change"], rows) if rows else ""
