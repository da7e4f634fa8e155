"""Line charts, which the script of the pages draws with uPlot (`charts.js`).

A `Chart` describes what to draw. Report, live page and notebook panel contain its numbers as JSON,
and the terminal shows them as a row of block characters. This module does not depend on training.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.downsampling import Gap, Points, find_gaps
from infrastructure.monitoring.drawing.formatting import format_number
from infrastructure.monitoring.drawing.html import Markup, element

LEADING_NUMBER = re.compile(r"([\d.]*)(.*)")


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
        """The newest value of the points and that of the marks, as text: `0.51 · held out 0.6`."""
        return " · held out ".join(
            self.format_value(p[-1][1]) for p in (self.points, self.marks) if p
        )


def figure(
    key: str, chart: Chart, now: str = "", caption: Markup | None = None, is_wide: bool = False
) -> Markup:
    """Return a chart with its heading and the numbers from which the page's script draws it.

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
    """Return the positions and the values of at most `max_points` points.

    NaN and infinity become null.
    """
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
