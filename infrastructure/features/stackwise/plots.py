"""SVG images of block-wise training: the layers that train at each step, above the loss.

Both parts have the same axis of steps. Colors are CSS classes of the page. This module does not
depend on training: its inputs are spans of layers, steps and losses.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from infrastructure.core.integers import ceil_div
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.charts import LOG_SCALE_FROM_RATIO, tick_labels
from infrastructure.monitoring.drawing.downsampling import (
    Points,
    linear_ticks,
    log_ticks,
    make_curve,
)
from infrastructure.monitoring.drawing.formatting import format_number
from infrastructure.monitoring.drawing.html import Markup, escape_text, raw_markup

RIGHT, TOP, GAP, BOTTOM = 14, 22, 26, 34
LEFT, NARROW_LEFT, NARROW = 76, 92, 600  # letters are larger in a narrow image
LAYERS_HEIGHT, MOST_ROW, LOSS_HEIGHT = 200, 18, 120
MOST_LABELS = 9
LABEL_WIDTH, LABEL_HEIGHT = 7.0, 12.0  # per character
NUM_BUCKETS = 360

Span = tuple[int, int]  # of layers, from 0: first and end (exclusive)


@dataclass(frozen=True)
class Bar:
    """One phase of training in the image.

    Attributes:
        first_step, last_step: the range of steps, actual or planned.
        has_begun: whether the phase has begun; otherwise it is only planned.
        trains: the layers whose weights train.
        adapts: the layers whose low-rank adapters train.
        depth: the number of layers that run, counted from the input.
        trains_below, trains_above: whether the embeddings train, and whether final norm and head
            train.
        label: the text above the bar, if there is space for it.
        losses, held_out: the (step, value) pairs of this phase.
    """

    title: str
    label: str
    first_step: int
    last_step: int
    has_begun: bool
    trains: Sequence[Span]
    adapts: Sequence[Span]
    depth: int
    trains_below: bool
    trains_above: bool
    losses: Points = field(default_factory=list)
    held_out: Points = field(default_factory=list)


class StackPicture:
    """The image of training phases (`bars`), with a width of `width` SVG units.

    Args:
        num_layers: the number of layers of the model.
        above: the label of the row above the layers.
    """

    def __init__(
        self, bars: Sequence[Bar], num_layers: int, width: int, above: str = "norm, head"
    ) -> None:
        self.bars, self.num_layers, self.width, self.above = bars, num_layers, width, above
        self.left = LEFT if width >= NARROW else NARROW_LEFT
        self.last_step = max([1, *(bar.last_step for bar in bars)])
        self.row = min(float(MOST_ROW), LAYERS_HEIGHT / (num_layers + 2))
        self.floor = TOP + self.row * (num_layers + 2)
        values = [v for bar in bars for _, v in (*bar.losses, *bar.held_out) if math.isfinite(v)]
        self.values = (min(values), max(values)) if values else None
        self.is_log = (
            bool(values) and min(values) > 0 and (max(values) / min(values) > LOG_SCALE_FROM_RATIO)
        )
        self.height = self.floor + BOTTOM
        if self.values:
            self.height += GAP + LOSS_HEIGHT

    def render(self) -> Markup:
        """Return the image as an `<svg>` that scales with the page's width."""
        title = "Which layers trained when, and the loss"
        parts = [
            f'<svg class="chart" viewBox="0 0 {self.width} {self.height:.0f}" role="img"'
            f' aria-label="{escape_text(title)}">',
            *self._rows(),
            *(part for bar in self.bars for part in self._bar(bar)),
            *self._labels(),
            *self._loss(),
            *self._steps(),
            "</svg>",
        ]
        return raw_markup("\n".join(parts))

    # Positions

    def _x(self, step: float) -> float:
        return self.left + (self.width - self.left - RIGHT) * step / self.last_step

    def _upper(self, row: int) -> float:
        """Return the upper y of a row. Row 0 is the embedding; then come layers and head."""
        return TOP + self.row * (self.num_layers + 1 - row)

    def _y(self, value: float) -> float:
        assert self.values is not None
        low, high = self.values
        padding = (
            (high / low) ** 0.06 if self.is_log else (high - low) * 0.06 or abs(high) * 0.1 or 1
        )
        low, high = (
            (low / padding, high * padding) if self.is_log else (low - padding, high + padding)
        )
        low, high, value = (math.log10(v) if self.is_log else v for v in (low, high, value))
        top = self.floor + GAP
        return top + LOSS_HEIGHT * (1 - (value - low) / (high - low))

    # Drawing

    def _rows(self) -> list[str]:
        """Draw the labels of rows, if there is space, and a line at each labeled row."""
        top = self.num_layers + 1
        named = {0: "embedding", top: self.above}
        every = ceil_div(self.num_layers, MOST_LABELS)
        for number in range(every, top, every):
            if self.row * min(number, top - number) >= LABEL_HEIGHT:
                named[number] = f"layer {number}"
        parts = []
        for row, name in named.items():
            y = self._upper(row) + self.row / 2
            parts.append(_line(self.left, y, self.width - RIGHT, y, "grid"))
            parts.append(_text(self.left - 8, y + 4, name, "end"))
        return parts

    def _bar(self, bar: Bar) -> list[str]:
        left, right = self._x(bar.first_step), self._x(bar.last_step)
        top = self.num_layers
        outside = {(-1, 0): bar.trains_below, (top, top + 1): bar.trains_above}
        kinds = {span: "cell" if trains else "frozen" for span, trains in outside.items()}
        kinds |= dict.fromkeys(_rest(bar.depth, [*bar.trains, *bar.adapts]), "frozen")
        kinds |= dict.fromkeys(bar.adapts, "adapted") | dict.fromkeys(bar.trains, "cell")
        parts = [_line(left, TOP - 6, left, self.floor, "grid")]
        for (first, end), kind in kinds.items():
            upper, lower = self._upper(end), self._upper(first)
            css_class = kind if bar.has_begun else f"{kind} planned"
            parts.append(_block(css_class, (left, right), (upper, lower), bar.title))
        return parts

    def _labels(self) -> list[str]:
        """Draw the labels of the phases, without those that would overlap."""
        parts, end = [], 0.0
        for bar in self.bars:
            middle = (self._x(bar.first_step) + self._x(bar.last_step)) / 2
            half = LABEL_WIDTH * len(bar.label) / 2
            if middle - half > end:
                parts.append(_text(middle, TOP - 9, bar.label, "middle"))
                end = middle + half + LABEL_WIDTH
        return parts

    def _loss(self) -> list[str]:
        if self.values is None:
            return []
        low, high = self.values
        ticks = log_ticks(low, high) if self.is_log else linear_ticks(low, high, num_ticks=4)
        parts = []
        for tick, label in zip(ticks, tick_labels(ticks), strict=True):
            y = self._y(tick)
            parts.append(_line(self.left, y, self.width - RIGHT, y, "grid"))
            parts.append(_text(self.left - 8, y + 4, label, "end"))
        for bar in self.bars:
            x = self._x(bar.first_step)
            parts.append(_line(x, self.floor + GAP, x, self.floor + GAP + LOSS_HEIGHT, "grid"))
        for bar in self.bars:
            parts += self._curve(bar)
        return parts

    def _curve(self, bar: Bar) -> list[str]:
        share = (bar.last_step - bar.first_step) / self.last_step
        curve = make_curve(bar.losses, max(8, int(NUM_BUCKETS * share)))
        parts = []
        for piece in curve.pieces:
            steps = [self._x(bucket.step) for bucket in piece]
            low, high, smooth = (
                [self._y(value) for value in values]
                for values in zip(*((b.low, b.high, b.smooth) for b in piece), strict=True)
            )
            if curve.is_downsampled:
                around = [*zip(steps, high, strict=True), *zip(steps[::-1], low[::-1], strict=True)]
                parts.append(f'<polygon class="envelope" points="{_points(around)}"/>')
            line = list(zip(steps, smooth, strict=True))
            if len(line) == 1:
                parts.append(_dot("alone", *line[0], 2.0))
            else:
                parts.append(f'<polyline class="main" points="{_points(line)}"/>')
        for step, value in bar.held_out:
            if math.isfinite(value):
                description = phrase(
                    "stackwise.held_out_at_step", step=step, value=format_number(value)
                )
                parts.append(_dot("mark", self._x(step), self._y(value), 3.5, description))
        return parts

    def _steps(self) -> list[str]:
        bottom = self.floor + (GAP + LOSS_HEIGHT if self.values else 0)
        parts = [_line(self.left, bottom, self.width - RIGHT, bottom, "axis")]
        right_edge = self.width - RIGHT - 48
        for tick in linear_ticks(0, self.last_step, num_ticks=max(3, self.width // 110)):
            x = self._x(tick)
            if tick == int(tick) and x <= right_edge:
                parts.append(_line(x, bottom, x, bottom + 4, "axis"))
                parts.append(_text(x, bottom + 18, f"{tick:,.0f}", "middle"))
        parts.append(_text(self.width - RIGHT, bottom + 18, "step", "end"))
        if self.values:
            parts.append(_text(self.left - 8, self.floor + GAP - 8, "loss", "end"))
        return parts


def _rest(depth: int, spans: Sequence[Span]) -> list[Span]:
    """Return spans of all layers below `depth` that are in none of the given spans."""
    taken = {layer for first, end in spans for layer in range(first, end)}
    rest: list[Span] = []
    for layer in (layer for layer in range(depth) if layer not in taken):
        if rest and rest[-1][1] == layer:
            rest[-1] = (rest[-1][0], layer + 1)
        else:
            rest.append((layer, layer + 1))
    return rest


def _block(
    css_class: str, across: tuple[float, float], down: tuple[float, float], title: str
) -> str:
    """Draw a rectangle with a small margin, as SVG."""
    (left, right), (upper, lower) = across, down
    pad = min(0.8, (lower - upper) / 8)
    return (
        f'<rect class="{css_class}" x="{left + 0.5:.1f}" y="{upper + pad:.1f}"'
        f' width="{max(0.5, right - left - 1):.1f}" height="{lower - upper - 2 * pad:.1f}">'
        f"<title>{escape_text(title)}</title></rect>"
    )


def _dot(css_class: str, x: float, y: float, radius: float, title: str = "") -> str:
    inside = f"<title>{escape_text(title)}</title>" if title else ""
    return f'<circle class="{css_class}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">{inside}</circle>'


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _line(x1: float, y1: float, x2: float, y2: float, css_class: str) -> str:
    return f'<line class="{css_class}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape_text(text)}</text>'
