"""Line charts as SVG, which is embedded in a page and colored by the page's CSS classes.

A `Chart` describes what to draw, however it is drawn: as SVG in this module, by the script of the
pages (`charts.js`, which gets `chart_json`), as PNG files (`plots.py`) or as a sparkline in the
terminal. An SVG takes a few kilobytes, follows light and dark mode, and works without scripts, in a
notebook's cell and on paper. This module does not depend on training.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.downsampling import (
    NUM_BUCKETS,
    BoundedPoints,
    Bucket,
    Curve,
    Gap,
    Points,
    linear_ticks,
    log_ticks,
    make_curve,
)
from infrastructure.monitoring.drawing.formatting import format_number
from infrastructure.monitoring.drawing.html import Markup, element, escape_text, raw_markup

LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 34
LOG_SCALE_FROM_RATIO = 30.0
MAX_DOTS = 80
MAX_DIGITS = 12  # on an axis whose values are close together
BAND_MARGIN = 2
MAX_POINTS, MAX_SMALL_POINTS = 2000, 800  # in a page, for a wide chart and for others
LEADING_NUMBER = re.compile(r"([\d.]*)(.*)")


@dataclass(frozen=True)
class Chart:
    """The content of one chart.

    Attributes:
        title: the title, which is also the text alternative for people who cannot see the chart.
        points: the (step, value) pairs of the quantity.
        marks: (step, value) pairs that are drawn as dots on top, such as evaluations.
        from_zero: whether the value axis begins at 0.
        may_be_log: whether to use a logarithmic value axis if the values span a wide range.
        axis: the label of the horizontal axis, such as "step".
        is_noisy: whether to draw an average over neighboring values, because single values
            fluctuate.
        x_unit, y_unit: the size of one unit on the axes in the original unit, such as seconds or
            bytes. With it, runs that are drawn in different units can be compared in one chart.
        num_buckets: the maximum number of points into which the curve is condensed.
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
    num_buckets: int = NUM_BUCKETS

    @cached_property
    def curve(self) -> Curve:
        """The points of the chart, condensed and smoothed for drawing."""
        return make_curve(self.points, self.num_buckets, self.is_noisy)

    @property
    def last(self) -> str:
        """The newest value and the newest mark: `0.51 · held out 0.6`."""
        return " · held out ".join(
            self.format_value(p[-1][1]) for p in (self.points, self.marks) if p
        )

    @property
    def is_one_dot(self) -> bool:
        """True if there is only one point, so that a number is shown instead of the chart."""
        return sum(len(piece) for piece in self.curve.pieces) < 2 and len(self.marks) < 2


@dataclass(frozen=True)
class Frame:
    """The mapping from steps and values to positions in the image, in units of the image."""

    width: int
    height: int
    steps: tuple[float, float]
    values: tuple[float, float]
    is_log: bool

    def x(self, step: float) -> float:
        low, high = self.steps
        share = (step - low) / (high - low) if high > low else 0.5
        return LEFT + share * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high, value = (math.log10(v) if self.is_log else v for v in (*self.values, value))
        share = (value - low) / (high - low)
        return self.height - BOTTOM - share * (self.height - TOP - BOTTOM)

    @property
    def bottom(self) -> int:
        return self.height - BOTTOM


def render_chart(chart: Chart, width: int = 440, height: int = 220) -> str:
    """Return the chart as an `<svg>` element, which scales with the page's width."""
    frame = _frame(chart, width, height)
    parts = [
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{escape_text(chart.title)}">'
    ]
    if frame is None:
        parts.append(_text(width / 2, height / 2, phrase("monitoring.no_finite_number"), "middle"))
    else:
        parts += [*_axes(chart, frame), *_gaps(chart.curve, frame)]
        parts += [*_lines(chart.curve, frame), *_marks(chart, frame)]
    return "\n".join([*parts, "</svg>"])


def figure(
    key: str, chart: Chart, now: str = "", caption: Markup | None = None, is_wide: bool = False
) -> Markup:
    """Return a chart with its heading, for a page. Its data for the page's script are included.

    Args:
        key: the key of the quantity, which is the same in every run.
        now: the newest value, to be shown next to the heading.
    """
    heading = element("h3", element("span", chart.title), element("span", now, css_class="now"))
    picture = raw_markup(render_chart(chart, 720, 260) if is_wide else render_chart(chart))
    attributes = {"data-key": key, "data-chart": chart_json(chart, is_wide)}
    css_class = "wide" if is_wide else None
    return element("figure", heading, picture, caption or "", css_class=css_class, **attributes)


def chart_json(chart: Chart, is_wide: bool = False) -> str:
    """Return the data of a chart for `charts.js`: the format and the points, fewer if many."""
    of_one, unit = LEADING_NUMBER.fullmatch(chart.format_value(1.0)).groups()  # type: ignore[union-attr]
    points = sorted(chart.points, key=lambda point: point[0])
    gaps = [(gap.first_step, gap.last_step) for gap in chart.curve.gaps]
    x, y = _columns(points, MAX_POINTS if is_wide else MAX_SMALL_POINTS)
    marks_x, marks_y = _columns(chart.marks, MAX_SMALL_POINTS)
    low, _ = value_range(chart) or (0.0, 0.0)
    content = {
        "x": x,
        "y": y,
        "marks_x": marks_x,
        "marks_y": marks_y,
        "gaps": gaps,
        "axis": chart.axis,
        "x_unit": chart.x_unit,
        "y_unit": chart.y_unit,
        "scale": float(of_one),
        "unit": unit,
        "zero": chart.from_zero,
        "log": uses_log_scale(chart),
        "may_log": low > 0 and not chart.from_zero,
        "noisy": chart.is_noisy and len(points) > 2,
    }
    return json.dumps(content, separators=(",", ":"))


def _columns(points: Points, max_points: int) -> tuple[list[float], list[float | None]]:
    """Return the positions and the values of at most `max_points` points.

    NaN and infinity become null.
    """
    if len(points) > max_points:
        bounded = BoundedPoints(max_points)
        for position, value in points:
            bounded.add(position, value)
        points = bounded.kept
    values = [float(f"{value:.5g}") if math.isfinite(value) else None for _, value in points]
    return [float(f"{position:.8g}") for position, _ in points], values


def value_range(chart: Chart) -> tuple[float, float] | None:
    """Return the smallest and the largest finite value, including marks; None if there is none."""
    values = [value for _, value in chart.marks if math.isfinite(value)]
    values += [value for bucket in chart.curve.buckets for value in (bucket.low, bucket.high)]
    return (min(values), max(values)) if values else None


def uses_log_scale(chart: Chart) -> bool:
    """Return whether the value axis is logarithmic: all values positive, over a wide range."""
    low, high = value_range(chart) or (0.0, 0.0)
    return chart.may_be_log and low > 0 and high / low > LOG_SCALE_FROM_RATIO


def _frame(chart: Chart, width: int, height: int) -> Frame | None:
    values = value_range(chart)
    if values is None:
        return None
    steps = [step for step, _ in chart.marks] + [b.step for b in chart.curve.buckets]
    steps += [step for gap in chart.curve.gaps for step in (gap.first_step, gap.last_step)]
    first = 0.0 if 0 <= min(steps) <= 0.1 * max(steps) else min(steps)
    is_log = uses_log_scale(chart)
    return Frame(width, height, (first, max(steps)), _padded_range(chart, *values, is_log), is_log)


def _padded_range(chart: Chart, low: float, high: float, is_log: bool) -> tuple[float, float]:
    """Return the range of the value axis: a little wider than the values, from 0 if requested."""
    if is_log:
        padding = (high / low) ** 0.05
        return low / padding, high * padding
    if chart.from_zero and low >= 0:
        return 0.0, high * 1.08 or 1.0
    padding = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - padding, high + padding


def _axes(chart: Chart, frame: Frame) -> list[str]:
    low, high = frame.values
    ticks = log_ticks(low, high) if frame.is_log else linear_ticks(low, high)
    parts = []
    labels = tick_labels(ticks, chart.format_value)
    for tick, label in zip(ticks, labels, strict=True):
        y = frame.y(tick)
        parts.append(_line(LEFT, y, frame.width - RIGHT, y, "grid"))
        parts.append(_text(LEFT - 8, y + 4, label, "end"))
    for tick in _step_ticks(frame):
        x = frame.x(tick)
        parts.append(_line(x, frame.bottom, x, frame.bottom + 4, "axis"))
        parts.append(_text(x, frame.bottom + 18, _short_count(tick), "middle"))
    parts.append(_line(LEFT, frame.bottom, frame.width - RIGHT, frame.bottom, "axis"))
    parts.append(_text(frame.width - RIGHT, frame.bottom + 18, chart.axis, "end"))
    return parts


def tick_labels(
    ticks: Sequence[float], format_value: Callable[[float], str] = format_number
) -> list[str]:
    """Return the labels of axis ticks, with enough digits to tell neighboring ticks apart."""
    labels = [without_zeros(format_value(tick)) for tick in ticks]
    if format_value is format_number:
        for digits in range(5, MAX_DIGITS + 1):
            if not _are_rounded(ticks, labels):
                break
            labels = [without_zeros(format_number(tick, digits)) for tick in ticks]
    return labels


def _are_rounded(ticks: Sequence[float], labels: Sequence[str]) -> bool:
    """Return whether any label is too inexact: off by over a hundredth of the tick distance."""
    least = min((after - before for before, after in pairwise(ticks)), default=math.inf)
    shown = (float(label.replace(",", "")) for label in labels)
    return any(abs(one - tick) > least / 100 for one, tick in zip(shown, ticks, strict=True))


def _step_ticks(frame: Frame) -> list[float]:
    """Return the ticks of the step axis, which leave room for its label at the right end."""
    ticks = linear_ticks(*frame.steps, num_ticks=max(3, frame.width // 110))
    right_edge = frame.width - RIGHT - 48
    return [tick for tick in ticks if tick == int(tick) and frame.x(tick) <= right_edge]


def without_zeros(number: str) -> str:
    """Drop trailing zeros, because axis ticks are round numbers: `1.500 GiB` → `1.5 GiB`."""
    return re.sub(r"(\.\d*?)0+(?=\D|$)", lambda match: match[1].rstrip("."), number, count=1)


def _short_count(count: float) -> str:
    """Shorten a count: 12000 → 12k, 2500000 → 2.5M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if count >= size:
            return f"{count / (1e3 if unit == 'k' else size):.4g}{unit}"
    return f"{count:,.0f}"


def _gaps(curve: Curve, frame: Frame) -> list[str]:
    """Return shaded bands for the gaps in a curve. Gaps close to each other share one band."""
    bands: list[tuple[float, list[Gap]]] = []
    right = -math.inf
    for gap in curve.gaps:
        left = frame.x(gap.first_step) - BAND_MARGIN
        if left <= right:
            bands[-1][1].append(gap)
        else:
            bands.append((left, [gap]))
        right = frame.x(gap.last_step) + BAND_MARGIN
    return [_band(left, gaps, frame) for left, gaps in bands]


def _band(left: float, gaps: list[Gap], frame: Frame) -> str:
    right = frame.x(gaps[-1].last_step) + BAND_MARGIN
    return (
        f'<rect class="gap" x="{left:.1f}" y="{TOP}" width="{right - left:.1f}"'
        f' height="{frame.bottom - TOP}"><title>{escape_text(describe_gaps(gaps))}</title></rect>'
    )


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


def _lines(curve: Curve, frame: Frame) -> list[str]:
    parts = []
    for piece in curve.pieces:
        steps = [frame.x(bucket.step) for bucket in piece]
        lower = [(x, frame.y(b.low)) for x, b in zip(steps, piece, strict=True)]
        main = [(x, frame.y(b.smooth)) for x, b in zip(steps, piece, strict=True)]
        if curve.is_downsampled:
            upper = [(x, frame.y(b.high)) for x, b in zip(steps, piece, strict=True)]
            parts.append(f'<polygon class="envelope" points="{_points([*upper, *lower[::-1]])}"/>')
        elif curve.is_smoothed:
            parts.append(_polyline(lower, "raw"))
        parts.append(_dot(*main[0], "alone", "") if len(main) == 1 else _polyline(main, "main"))
    return parts


def _marks(chart: Chart, frame: Frame) -> list[str]:
    """Return the marks of a chart as dots joined by a line.

    Many marks become a line without dots.
    """
    if len(chart.marks) > MAX_DOTS:
        curve = make_curve(chart.marks, num_buckets=MAX_DOTS)
        return [_polyline(_zigzag(piece, frame), "mark-line") for piece in curve.pieces]
    spots = [(step, value) for step, value in chart.marks if math.isfinite(value)]
    path = [(frame.x(step), frame.y(value)) for step, value in spots]
    parts = [_polyline(path, "mark-line")] if len(path) > 1 else []
    for (x, y), (step, value) in zip(path, spots, strict=True):
        parts.append(_dot(x, y, "mark", f"step {step:,.0f}: {chart.format_value(value)}"))
    return parts


def _zigzag(piece: list[Bucket], frame: Frame) -> list[tuple[float, float]]:
    return [(frame.x(b.step), frame.y(value)) for b in piece for value in (b.high, b.low)]


def _points(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _polyline(points: list[tuple[float, float]], css_class: str) -> str:
    return f'<polyline class="{css_class}" points="{_points(points)}"/>'


def _dot(x: float, y: float, css_class: str, title: str) -> str:
    radius = 3.5 if css_class == "mark" else 2.0
    inside = f"<title>{escape_text(title)}</title>" if title else ""
    return f'<circle class="{css_class}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">{inside}</circle>'


def _line(x1: float, y1: float, x2: float, y2: float, css_class: str) -> str:
    return f'<line class="{css_class}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape_text(text)}</text>'
