"""Tables of evaluation results: headings and cells, for the terminal and for the page."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from infrastructure.config.measures import (
    EXACT_MATCH,
    F1,
    FINAL_ANSWER,
    LOSS,
    MEASURES,
    PERPLEXITY,
    TOKEN_ACCURACY,
)
from infrastructure.evaluation.comparison import MeasureDifference
from infrastructure.evaluation.intervals import Interval
from infrastructure.evaluation.rows import ALL, MeasuredRows
from infrastructure.monitoring.drawing.formatting import format_number, format_share
from infrastructure.monitoring.records.run_list import BEGAN_AT

Table = tuple[list[str], list[list[str]]]

LABELS = {
    LOSS: "loss per token",
    PERPLEXITY: "perplexity",
    TOKEN_ACCURACY: "token accuracy",
    EXACT_MATCH: "exact match",
    FINAL_ANSWER: "final answer",
    F1: "F1",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
}
POINTS = " points"  # percentage points
PLAIN = (LOSS, PERPLEXITY)  # measures that are not shares


def short_names(models: Sequence[str]) -> list[str]:
    """Return short names of models for tables: the last part of a path, without start times.

    If short names would be equal, start times are kept; if names would still be equal, they are
    returned unshortened.
    """
    last = [last_name(model) for model in models]
    for short in ([BEGAN_AT.sub("", name) for name in last], last):
        if len(set(short)) == len(short):
            return short
    return [*models]


def last_name(model: str) -> str:
    """Return a short name of a model: its run, its folder, or its Hub name."""
    path = Path(model)
    if not path.is_dir():
        return model  # a name on the Hub
    path = path.absolute()
    return (path.parent if path.name == "final" else path).name or model


def overall_table(title: str, measured: Mapping[str, MeasuredRows]) -> Table:
    """Return a table of each measure over all rows, with its interval."""
    rows = [
        [
            LABELS[name],
            shown(name, of.interval.value),
            shown_range(name, of.interval),
            f"{of.num_rows:,}",
        ]
        for name, of in measured.items()
    ]
    return [title, "", "95% interval", "rows"], rows


def task_table(tables: Mapping[str, Mapping[str, MeasuredRows]], with_intervals: bool) -> Table:
    """Return a table with a row for each task; empty if no row names a task.

    Args:
        with_intervals: show intervals, and also perplexity, which carries the same information as
            the loss. A terminal has no space for either.
    """
    names = [
        name
        for name in MEASURES
        if any(name in of_task for of_task in tables.values())
        and (with_intervals or name != PERPLEXITY)
    ]
    headings = ["task", "rows", *(LABELS[name] for name in names)]
    rows = []
    for task, of_task in tables.items():
        if task != ALL:
            count = max((of.num_rows for of in of_task.values()), default=0)
            cells = [_cell(name, of_task.get(name), with_intervals) for name in names]
            rows.append([task, f"{count:,}", *cells])
    return headings, rows


def _cell(name: str, of: MeasuredRows | None, with_interval: bool) -> str:
    if of is None:
        return "–"
    value = shown(name, of.interval.value)
    return f"{value} ({shown_range(name, of.interval)})" if with_interval else value


def difference_table(
    compared: Mapping[str, Sequence[MeasureDifference]], names: tuple[str, str]
) -> Table:
    """Return a table of the differences, second model minus first, of each measure by task."""
    headings = ["measure", "rows", *names, "difference", "95% interval", "verdict"]
    rows = []
    for task, differences in compared.items():
        for of in differences:
            label = LABELS[of.measure] if task == ALL else f"  {LABELS[of.measure]}, {task}"
            rows.append(
                [
                    label,
                    f"{of.num_rows:,}",
                    shown(of.measure, of.first),
                    shown(of.measure, of.second),
                    _signed(of.measure, of.difference.value).removesuffix(POINTS),
                    _signed_range(of.measure, of.difference),
                    of.verdict if of.chance is None else f"{of.verdict} (p = {of.chance:.2g})",
                ]
            )
    return headings, rows


def shown(measure: str, value: float) -> str:
    """Format a value of a measure for display."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else str(value)
    return format_number(value) if measure in PLAIN else format_share(value)


def shown_range(measure: str, interval: Interval) -> str:
    """Format the ends of an interval; a dash if there are too few rows."""
    if math.isnan(interval.low):
        return "–"
    return f"{shown(measure, interval.low)} to {shown(measure, interval.high)}"


def _signed_range(measure: str, change: Interval) -> str:
    """Format both ends of an interval with signs, and the unit once."""
    low, high = (_signed(measure, end) for end in (change.low, change.high))
    return f"{low.removesuffix(POINTS)} to {high}"


def _signed(measure: str, value: float) -> str:
    if math.isnan(value):
        return "–"
    if measure in PLAIN:
        return f"{value:+z.4g}"
    # A value other than 0 must not look like 0: it decides the verdict.
    rounded = f"{100 * value:+z.1f}"
    is_small = value != 0 and float(rounded) == 0
    return f"{100 * value:+.1g}{POINTS}" if is_small else f"{rounded}{POINTS}"
