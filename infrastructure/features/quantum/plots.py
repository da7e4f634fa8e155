"""SVG images of quantum steps: the energies of answers, and the chosen examples and blocks.

Colors are CSS classes of the page. This module does not depend on training: its inputs are
energies, shares and names.
"""

from collections.abc import Mapping, Sequence

from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import format_number, format_share
from infrastructure.monitoring.drawing.html import Markup, escape_text, raw_markup

WIDTH, HEIGHT = 440, 200
MARGIN, AXIS, ROOM = 14, 26, 40  # at the sides, for the axis, for text above the bars
NUM_BARS = 24
CELL, MOST_ROWS, MOST_COLUMNS = 16, 60, 60
NAMES_WIDTH = 120


def energy_picture(chance: Sequence[float], answers: Mapping[str, float], best: str) -> Markup:
    """Draw the energies of answers in a histogram of random answers' energies. Lower is better.

    Args:
        chance: the energies of random answers.
        answers: the energy of each answer, by the solver or method that found it.
        best: the name of the answer that was used.
    """
    values = [*chance, *answers.values()]
    low, high = min(values), max(values)
    width = WIDTH - 2 * MARGIN

    def x(value: float) -> float:
        return MARGIN + (width * (value - low) / (high - low) if high > low else width / 2)

    counts = [0] * NUM_BARS
    for value in chance:
        share = (value - low) / (high - low) if high > low else 0.5
        counts[min(NUM_BARS - 1, int(share * NUM_BARS))] += 1
    floor, most = HEIGHT - AXIS, max([*counts, 1])
    parts = [
        _rectangle(
            "bar",
            (MARGIN + i * width / NUM_BARS, floor - (floor - ROOM) * count / most),
            (width / NUM_BARS - 1, (floor - ROOM) * count / most),
            phrase("quantum.num_by_chance", count=count, total=len(chance)),
        )
        for i, count in enumerate(counts)
        if count
    ]
    parts.append(
        f'<line class="axis" x1="{MARGIN}" y1="{floor}" x2="{WIDTH - MARGIN}" y2="{floor}"/>'
    )
    for row, (name, energy) in enumerate(sorted(answers.items(), key=lambda pair: pair[0] != best)):
        kind = "answer" if name == best else "other"
        label = f"{name}: {format_number(energy)}"
        at = f'x1="{x(energy):.1f}" y1="{ROOM if row else 14}" x2="{x(energy):.1f}" y2="{floor}"'
        parts.append(f'<line class="{kind}" {at}><title>{escape_text(label)}</title></line>')
    parts.append(_words(x(answers[best]) + 5, 14, best, "start") if best in answers else "")
    parts += [
        _words(MARGIN, HEIGHT - 8, format_number(low), "start"),
        _words(WIDTH - MARGIN, HEIGHT - 8, f"energy {format_number(high)}", "end"),
    ]
    return _picture("Energies of the answers and of random choices", (WIDTH, HEIGHT), parts)


def density_picture(rows: Sequence[tuple[str, Sequence[float]]]) -> Markup:
    """Draw a strip for each answer, with the share of chosen examples in each part of the data.

    Args:
        rows: the label of each strip, and the shares from 0 to 1 in the order of the data.
    """
    shown = rows[-MOST_ROWS:]
    parts = []
    for number, (name, shares) in enumerate(shown):
        top = 4 + number * CELL
        parts.append(_words(NAMES_WIDTH - 8, top + 11, name, "end"))
        size = (WIDTH - NAMES_WIDTH - MARGIN) / max(1, len(shares))
        for place, share in enumerate(shares):
            title = phrase(
                "quantum.share_of_part",
                share=format_share(share),
                number=place + 1,
                total=len(shares),
            )
            corner = (NAMES_WIDTH + place * size, top)
            parts.append(_rectangle("cell", corner, (size, CELL - 3), title, share))
    return _picture("Chosen share of the training data, part by part", _size(len(shown)), parts)


def block_picture(blocks: Sequence[str], answers: Sequence[tuple[str, Sequence[str]]]) -> Markup:
    """Draw a row for each block of the model and a column for each answer; fill the chosen blocks.

    Args:
        answers: for each answer, a name, such as its step, and the chosen blocks.
    """
    shown, rows = answers[-MOST_COLUMNS:], blocks[:MOST_ROWS]
    size = min(CELL * 2.0, (WIDTH - NAMES_WIDTH - MARGIN) / max(1, len(shown)))
    parts = []
    for row, block in enumerate(rows):
        top = 4 + row * CELL
        parts.append(_words(NAMES_WIDTH - 8, top + 11, block, "end"))
        for column, (name, chosen) in enumerate(shown):
            is_chosen = block in chosen
            title = f"{name}: {block} {'trains' if is_chosen else 'is frozen'}"
            corner = (NAMES_WIDTH + column * size, top)
            parts.append(
                _rectangle("cell", corner, (size - 1, CELL - 3), title, 1.0 if is_chosen else 0.08)
            )
    return _picture("Trained blocks, by answer", _size(len(rows)), parts)


def _size(num_rows: int) -> tuple[int, int]:
    return WIDTH, 8 + num_rows * CELL


def _picture(title: str, size: tuple[int, int], parts: Sequence[str]) -> Markup:
    head = (
        f'<svg class="chart" viewBox="0 0 {size[0]} {size[1]}" role="img"'
        f' aria-label="{escape_text(title)}">'
    )
    return raw_markup("\n".join([head, *filter(None, parts), "</svg>"]))


def _rectangle(
    css_class: str,
    corner: tuple[float, float],
    size: tuple[float, float],
    title: str,
    opacity: float = 1.0,
) -> str:
    return (
        f'<rect class="{css_class}" x="{corner[0]:.1f}" y="{corner[1]:.1f}" width="{size[0]:.1f}"'
        f' height="{size[1]:.1f}" fill-opacity="{opacity:.2f}">'
        f"<title>{escape_text(title)}</title></rect>"
    )


def _words(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape_text(text)}</text>'
