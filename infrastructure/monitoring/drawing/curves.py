"""The charts of a run: which quantities in `metrics.jsonl` are drawn, and their titles."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

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
    not_finite_name,
)
from infrastructure.monitoring.drawing.html import Markup, element, raw_markup, readable_key
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


@dataclass(frozen=True)
class Quantity:
    """The way in which one key of `metrics.jsonl` is drawn."""

    key: str
    title: str
    from_zero: bool = False
    may_be_log: bool = False
    is_noisy: bool = True
    marks_key: str = ""


QUANTITIES = (
    Quantity("loss", "Loss", may_be_log=True, marks_key="eval_loss"),
    Quantity("learning_rate", "Learning rate", from_zero=True, is_noisy=False),
    Quantity("grad_norm", "Gradient norm, before clipping", may_be_log=True),
    Quantity("tokens_per_second", "Tokens per second", from_zero=True),
    Quantity("memory_bytes", "Peak memory", from_zero=True, is_noisy=False),
)


def curves(charts: Mapping[str, Chart], wide: str | None = WIDE) -> list[Markup]:
    """Return a figure for each chart with more than one point.

    Args:
        wide: the key of the chart to draw large.
    """
    return [
        figure(key, chart, f"last {chart.last}", _caption(chart), key == wide)
        for key, chart in charts.items()
        if not chart.is_one_dot
    ]


def single_numbers(charts: Mapping[str, Chart]) -> Markup:
    """Return the quantities with only one point as numbers, or nothing if there are none."""
    tiles = []
    for chart in charts.values():
        for (step, value), name in zip(
            [*chart.points[-1:], *chart.marks[-1:]], ("", ", held out"), strict=False
        ):
            if not chart.is_one_dot:
                continue
            parts = [
                element("div", f"{chart.title}{name if chart.points else ''}", css_class="name"),
                element("div", chart.format_value(value), css_class="value"),
                element("div", f"at step {step:,.0f}", css_class="more"),
            ]
            tiles.append(element("div", *parts, css_class="tile"))
    return element("div", *tiles, css_class="tiles numbers") if tiles else raw_markup("")


def charts_of(points: PointsByKey, evaluated: Collection[str]) -> dict[str, Chart]:
    """Return the chart of each key. The loss comes first.

    Args:
        evaluated: the keys that come from evaluations.
    """
    points = without_tied_points(points)
    charts: dict[str, Chart] = {}
    for quantity in QUANTITIES:
        if (chart := _chart_of(quantity, points)) is not None:
            charts[quantity.key] = chart
    known = {key for q in QUANTITIES for key in (q.key, q.marks_key)} | POSITION_KEYS
    known |= {f"{HELD_OUT}{key}" for key in points if f"{HELD_OUT}{key}" in evaluated}
    further = [
        key
        for key, pairs in points.items()
        if key not in known
        and not (len(pairs) < 2 and key.startswith(prefixes_of_features()))
        and not (name_of(key).is_detail and not any(value for _, value in pairs))
    ]
    return charts | {
        key: _further(key, points, key in evaluated)
        for key in in_order(further)[:MAX_FURTHER_CHARTS]
    }


def holes(points: PointsByKey) -> list[str]:
    """Return a sentence for each quantity that has NaN or infinite values."""
    gaps_by_key = {key: find_gaps(pairs) for key, pairs in points.items()}
    return [
        f"{readable_key(key)}: {describe_gaps(gaps, max_named=3)}"
        for key, gaps in gaps_by_key.items()
        if gaps
    ]


def _chart_of(quantity: Quantity, points_of: PointsByKey) -> Chart | None:
    """Return the chart of a quantity, or None if it has no points."""
    points = points_of.get(quantity.key, [])
    marks = points_of.get(quantity.marks_key, [])
    if not points and not marks:
        return None
    size, format_value = _unit(quantity.key, points)
    return Chart(
        quantity.title,
        [(step, value / size) for step, value in points],
        marks,
        format_value,
        y_unit=size,
        from_zero=quantity.from_zero,
        may_be_log=quantity.may_be_log,
        is_noisy=quantity.is_noisy,
    )


def _further(key: str, points_of: PointsByKey, is_evaluation: bool) -> Chart:
    """Return the chart of a quantity that an evaluation or an extension added to the metrics.

    Values of an evaluation are drawn as dots, on top of the values from training if both exist.
    """
    name = name_of(key)
    format_value = format_share if name.is_share else format_number
    title = name.title[:1].upper() + name.title[1:]
    title += ", seconds" if key.endswith("_seconds") else ""
    better = f" ({name.better})" if name.better else ""
    if is_evaluation:
        return Chart(f"{title}, held out{better}", [], points_of[key], format_value)
    marks = points_of.get(f"{HELD_OUT}{key}", [])
    return Chart(title + better, points_of[key], marks, format_value)


def _unit(key: str, points: Points) -> tuple[float, Callable[[float], str]]:
    """Return the number by which to divide the values for display, and the format of the result.

    Bytes get the unit that fits the largest value, so that the axis has round numbers.
    """
    if not key.endswith("_bytes"):
        return 1.0, format_number
    largest = max((value for _, value in points if not not_finite_name(value)), default=0.0)
    size, unit = (2**30, "GiB") if largest >= 2**30 else (2**20, "MiB")
    return size, lambda value: f"{format_number(value, 3)} {unit}"


def _caption(chart: Chart) -> Markup:
    keys: list[tuple[str, str | None]] = []
    if chart.points and chart.marks:
        keys += [("training", "key"), ("held out", "key held-out")]
    if chart.is_noisy and len(chart.points) > NUM_UNSMOOTHED:
        keys.append((phrase("monitoring.band_of_records"), "key band"))
    if gaps := [*find_gaps(chart.points), *find_gaps(chart.marks)]:
        keys.append((f"not finite: {describe_gaps(gaps, max_named=2)}", "bad"))
    return element("figcaption", *[element("span", text, css_class=key) for text, key in keys])
