"""The curves of a run as image files, for talks and papers, drawn by matplotlib."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from infrastructure.core.files import atomic_write
from infrastructure.core.optional import require
from infrastructure.monitoring.drawing.charts import Chart, uses_log_scale
from infrastructure.monitoring.drawing.curves import QUANTITIES, PointsByKey, chart_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


FOLDER = "plots"
SIZE_INCHES, DOTS_PER_INCH = (7.2, 3.6), 160
MAIN, FAINT, MARK, GRID, SOFT = "#2463c4", "#9fbce8", "#c65d0e", "#e1e5ea", "#5b6673"


def write_plots(points: PointsByKey, folder: Path) -> list[Path]:
    """Write a PNG for each quantity that has points, and return their paths.

    Raises:
        OSError: if the folder cannot be written to.
        MissingPackageError: if matplotlib is not installed.
    """
    charts = {quantity.key: chart_of(quantity, points) for quantity in QUANTITIES}
    return [
        _write(chart, folder / f"{key}.png") for key, chart in charts.items() if chart is not None
    ]


def _write(chart: Chart, path: Path) -> Path:
    figure = require("matplotlib.figure", "monitoring.plots_as_files").Figure(
        figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained"
    )
    _draw(chart, figure.subplots())
    with atomic_write(path) as file:
        figure.savefig(file, format="png")
    return path


def _draw(chart: Chart, axes: "Axes") -> None:
    for number, piece in enumerate(chart.curve.pieces):
        steps = [bucket.step for bucket in piece]
        low, high = ([getattr(bucket, end) for bucket in piece] for end in ("low", "high"))
        axes.fill_between(steps, low, high, color=FAINT, linewidth=0.8)
        name = "training" if number == 0 and chart.marks else None
        dot = "o" if len(piece) == 1 else None
        smooth = [bucket.smooth for bucket in piece]
        axes.plot(steps, smooth, color=MAIN, linewidth=1.6, marker=dot, label=name)
    marks = [(step, value) for step, value in chart.marks if math.isfinite(value)]
    if marks:
        axes.plot(*zip(*marks, strict=True), "o-", color=MARK, markersize=4, label="held out")
    if uses_log_scale(chart):
        axes.set_yscale("log")
    elif chart.from_zero:
        axes.set_ylim(bottom=0)
    _dress(chart, axes)


def _dress(chart: Chart, axes: "Axes") -> None:
    axes.set_title(chart.title, loc="left", fontsize=11)
    axes.set_xlabel(chart.axis, color=SOFT)
    axes.yaxis.set_major_formatter(lambda value, _: chart.format_value(value))
    axes.grid(color=GRID)
    axes.set_axisbelow(True)
    axes.tick_params(colors=SOFT)
    axes.spines[["top", "right"]].set_visible(False)
    if chart.marks:
        axes.legend(frameon=False)
