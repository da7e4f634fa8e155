"""The charts of a run: which quantities in `metrics.jsonl` are drawn, and their titles."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from infrastructure.core.features import prefixes_of_features
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.charts import (
    Chart,
    describe_gaps,
    figure,
)
from infrastructure.monitoring.drawing.downsampling import Points, find_gaps
from infrastructure.monitoring.drawing.formatting import (
    format_number,
    format_share,
)
from infrastructure.monitoring.drawing.html import Markup, element, readable_key
from infrastructure.monitoring.drawing.quantity_names import (
    HELD_OUT,
    in_order,
    name_of,
    without_tied_points,
)

EVALUATION = "evaluation"
MAX_FURTHER_CHARTS = 12
NUM_UNSMOOTHED = 100  # points of a curve that the script of the pages does not smooth
WIDE = "loss"
POSITION_KEYS = {"step", "epoch", "tokens", "seconds", "num_tokens", "eval_num_tokens"}


PointsByKey = dict[str, Points]


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
