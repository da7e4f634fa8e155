"""SVG images of block-wise training: the layers that train at each step.

Colors are CSS classes of the page. This module does not depend on training: its inputs are spans of
layers, and steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from infrastructure.core.integers import ceil_div
from infrastructure.monitoring.drawing.downsampling import Points
from infrastructure.monitoring.drawing.html import Markup, escape_text, raw_markup

RIGHT, TOP, BOTTOM = 14, 22, 34
LEFT, NARROW_LEFT, NARROW = 76, 92, 600  # letters are larger in a narrow image
LAYERS_HEIGHT, MOST_ROW = 200, 18
MOST_LABELS = 9
LABEL_WIDTH, LABEL_HEIGHT = 7.0, 12.0  # per character

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
        self.height = self.floor + BOTTOM

    def render(self) -> Markup:
        """Return the image as an `<svg>` that scales with the page's width."""
        title = "Which layers trained when"
        parts = [
            f'<svg class="chart" viewBox="0 0 {self.width} {self.height:.0f}" role="img"'
            f' aria-label="{escape_text(title)}">',
            *self._rows(),
            *(part for bar in self.bars for part in self._bar(bar)),
            *self._labels(),
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

    def _steps(self) -> list[str]:
        parts = [_line(self.left, self.floor, self.width - RIGHT, self.floor, "axis")]
        right_edge = self.width - RIGHT - 48
        for tick in _ticks(self.last_step, num_ticks=max(3, self.width // 110)):
            if (x := self._x(tick)) <= right_edge:
                parts.append(_line(x, self.floor, x, self.floor + 4, "axis"))
                parts.append(_text(x, self.floor + 18, f"{tick:,.0f}", "middle"))
        return [*parts, _text(self.width - RIGHT, self.floor + 18, "step", "end")]


def _ticks(last_step: int, num_ticks: int) -> range:
    """Return whole numbers from 0, which are 1, 2 or 5 times a power of ten apart."""
    power = 10 ** math.floor(math.log10(max(1, last_step / num_ticks)))
    return range(
        0,
        last_step + 1,
        next(f * power for f in (1, 2, 5, 10) if f * power * num_ticks >= last_step),
    )


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


def _line(x1: float, y1: float, x2: float, y2: float, css_class: str) -> str:
    return f'<line class="{css_class}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape_text(text)}</text>'
