"""The charts of a run, which the script of the pages draws with uPlot (`charts.js`).

A `Chart` describes what to draw. Report, live page and notebook panel contain its numbers as JSON,
and the terminal shows them as a row of block characters. This module does not depend on training.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from infrastructure.core.features import prefixes_of_features
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.downsampling import Gap, Points, find_gaps
from infrastructure.monitoring.drawing.formatting import format_number, format_share
from infrastructure.monitoring.drawing.html import Markup, element, readable_key
from infrastructure.monitoring.drawing.quantity_names import (
    HELD_OUT,
    in_order,
    name_of,
    without_tied_points,
)

LEADING_NUMBER = re.compile(r"([\d.]*)(.*)")
EVALUATION = "evaluation"
MAX_FURTHER_CHARTS = 12
NUM_UNSMOOTHED = 100  # points of a curve that the script of the pages does not smooth
WIDE = "loss"
POSITION_KEYS = {"step", "epoch", "tokens", "seconds", "num_tokens", "eval_num_tokens"}


PointsByKey = dict[str, Points]


@dataclass(frozen=True)
class Chart:
    """The content of one chart.

    Attributes:
        points: the (step, value) pairs of the quantity.
        marks: (step, value) pairs that are drawn as dots on top, such as evaluations.
        from_zero: whether the value axis begins at 0.
        may_be_log: whether to use a logarithmic value axis if the values span a wide range.
        axis: the label of the horizontal axis, such as "step".
        is_noisy: whether to draw an average over neighboring values, because single values
            fluctuate.
        x_unit, y_unit: the size of one unit on the axes in the original unit, such as seconds or
            bytes. With it, runs that are drawn in different units can be compared in one chart.
    """

    title: str
    points: Points = field(default_factory=list)
    marks: Points = field(default_factory=list)
    format_value: Callable[[float], str] = format_number
    from_zero: bool = False
    may_be_log: bool = False
    axis: str = "step"
    is_noisy: bool = True
    x_unit: float = 1.0
    y_unit: float = 1.0

    @property
    def last(self) -> str:
        """The newest value of the points, and the newest value of the marks, as text: `0.51 · held
        out 0.6`.
        """
        return " · held out ".join(
            self.format_value(p[-1][1]) for p in (self.points, self.marks) if p
        )


def figure(
    key: str, chart: Chart, now: str = "", caption: Markup | None = None, is_wide: bool = False
) -> Markup:
    """Return a chart with its heading, and its numbers, from which the page's script draws it.

    Args:
        key: the key of the quantity, which is the same in every run.
        now: the newest value, to be shown next to the heading.
    """
    heading = element("h3", element("span", chart.title), element("span", now, css_class="now"))
    attributes = {"data-key": key, "data-chart": chart_json(chart)}
    css_class = "wide" if is_wide else None
    return element("figure", heading, caption or "", css_class=css_class, **attributes)


def chart_json(chart: Chart) -> str:
    """Return the input of `charts.js`: the format and the points."""
    of_one, unit = LEADING_NUMBER.fullmatch(chart.format_value(1.0)).groups()  # type: ignore[union-attr]
    points = sorted(chart.points, key=lambda point: point[0])
    x, y = _columns(points)
    marks_x, marks_y = _columns(chart.marks)
    content = {
        "x": x,
        "y": y,
        "marks_x": marks_x,
        "marks_y": marks_y,
        "gaps": [(gap.first_step, gap.last_step) for gap in find_gaps(points)],
        "axis": chart.axis,
        "x_unit": chart.x_unit,
        "y_unit": chart.y_unit,
        "scale": float(of_one),
        "unit": unit,
        "zero": chart.from_zero,
        "log": chart.may_be_log,
        "noisy": chart.is_noisy,
    }
    return json.dumps(content, separators=(",", ":"))


def _columns(points: Points) -> tuple[list[float], list[float | None]]:
    """Return the positions and the values of a curve. NaN and infinity become None."""
    values = [float(f"{value:.5g}") if math.isfinite(value) else None for _, value in points]
    return [float(f"{position:.8g}") for position, _ in points], values


def describe_gaps(gaps: list[Gap], max_named: int = 4) -> str:
    """Describe gaps: `NaN at step 120; Infinity at steps 300–340 (5 records)`.

    If there are more than `max_named` gaps, the rest is summarized: `and 3 more places (9
    records)`.
    """
    named = []
    for gap in gaps[:max_named]:
        if gap.num_records == 1:
            named.append(f"{gap.name} at step {gap.first_step:,.0f}")
        else:
            steps = f"steps {gap.first_step:,.0f}–{gap.last_step:,.0f}"
            named.append(f"{gap.name} at {steps} ({gap.num_records:,} records)")
    if len(gaps) > max_named:
        num_records = sum(gap.num_records for gap in gaps[max_named:])
        named.append(
            phrase("monitoring.more_gaps", count=len(gaps) - max_named, num_records=num_records)
        )
    return "; ".join(named)


# The charts of the keys that most runs have, without their points.
COMMON = {
    WIDE: Chart("Loss", may_be_log=True),
    "learning_rate": Chart("Learning rate", from_zero=True, is_noisy=False),
    "grad_norm": Chart("Gradient norm, before clipping", may_be_log=True),
    "tokens_per_second": Chart("Tokens per second", from_zero=True),
    "memory_bytes": Chart("Peak memory", from_zero=True, is_noisy=False),
}


def curves(charts: Mapping[str, Chart], wide: str | None = WIDE) -> list[Markup]:
    """Return a figure for each chart.

    Args:
        wide: the key of the chart to draw large.
    """
    return [
        figure(key, chart, f"last {chart.last}", _caption(chart), key == wide)
        for key, chart in charts.items()
    ]


def charts_of(points: PointsByKey, evaluated: Collection[str]) -> dict[str, Chart]:
    """Return the chart of each key. The loss comes first.

    Args:
        evaluated: the keys that come from evaluations.
    """
    points = without_tied_points(points)
    common = [key for key in COMMON if key in points or f"{HELD_OUT}{key}" in points]
    known = {*COMMON, *POSITION_KEYS, *(f"{HELD_OUT}{key}" for key in COMMON)}
    known |= {f"{HELD_OUT}{key}" for key in points if f"{HELD_OUT}{key}" in evaluated}
    further = [
        key
        for key, pairs in points.items()
        if key not in known
        and not (len(pairs) < 2 and key.startswith(prefixes_of_features()))
        and not (name_of(key).is_detail and not any(value for _, value in pairs))
    ]
    shown = [*common, *in_order(further)[:MAX_FURTHER_CHARTS]]
    return {key: _chart(key, points, key in evaluated) for key in shown}


def holes(points: PointsByKey) -> list[str]:
    """Return a sentence for each quantity that has NaN or infinite values."""
    gaps_by_key = {key: find_gaps(pairs) for key, pairs in points.items()}
    return [
        f"{readable_key(key)}: {describe_gaps(gaps, max_named=3)}"
        for key, gaps in gaps_by_key.items()
        if gaps
    ]


def _chart(key: str, points_of: PointsByKey, is_evaluation: bool) -> Chart:
    """Return the chart of a key, with the values of evaluations as dots.

    Bytes get the unit that fits the largest value, so that the axis has round numbers.
    """
    points, marks = points_of.get(key, []), points_of.get(f"{HELD_OUT}{key}", [])
    chart = COMMON.get(key) or _further(key, is_evaluation)
    if is_evaluation:
        return replace(chart, marks=points)
    if not key.endswith("_bytes"):
        return replace(chart, points=points, marks=marks)
    largest = max((value for _, value in points if math.isfinite(value)), default=0.0)
    size, unit = (2**30, "GiB") if largest >= 2**30 else (2**20, "MiB")
    return replace(
        chart,
        points=[(step, value / size) for step, value in points],
        format_value=lambda value: f"{format_number(value, 3)} {unit}",
        y_unit=size,
    )


def _further(key: str, is_evaluation: bool) -> Chart:
    """Return the chart of a quantity that an evaluation or an extension added, without points."""
    name = name_of(key)
    title = name.title[:1].upper() + name.title[1:]
    title += ", seconds" if key.endswith("_seconds") else ""
    title += ", held out" if is_evaluation else ""
    better = f" ({name.better})" if name.better else ""
    return Chart(title + better, format_value=format_share if name.is_share else format_number)


def _caption(chart: Chart) -> Markup:
    keys: list[tuple[str, str | None]] = []
    if chart.points and chart.marks:
        keys += [("training", "key"), ("held out", "key held-out")]
    if chart.is_noisy and len(chart.points) > NUM_UNSMOOTHED:
        keys.append((phrase("monitoring.band_of_records"), "key band"))
    if gaps := [*find_gaps(chart.points), *find_gaps(chart.marks)]:
        keys.append((f"not finite: {describe_gaps(gaps, max_named=2)}", "bad"))
    return element("figcaption", *[element("span", text, css_class=key) for text, key in keys])
