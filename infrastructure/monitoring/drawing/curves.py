"""The curves of a report: which numbers of `metrics.jsonl` are drawn, and what is said of them."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from infrastructure.monitoring.drawing.charts import (
    Chart,
    describe_gaps,
    render_chart,
    uses_log_scale,
)
from infrastructure.monitoring.drawing.downsampling import (
    NUM_BUCKETS,
    Points,
    find_gaps,
    make_curve,
)
from infrastructure.monitoring.drawing.formatting import (
    format_number,
    format_share,
    not_finite_name,
)
from infrastructure.monitoring.drawing.html import Markup, element, joined, raw_markup, readable_key
from infrastructure.monitoring.drawing.metrics_file import Record

EVALUATION = "evaluation"
MAX_FURTHER_CHARTS = 12
WIDE = "loss"
POSITION_KEYS = {"step", "epoch", "tokens", "seconds"}


PointsByKey = dict[str, Points]


@dataclass(frozen=True)
class Quantity:
    """How one key of the records is drawn."""

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


def points_by_key(records: Iterable[Record]) -> PointsByKey:
    """Key → (step, value) of every record that has a number under it."""
    points: PointsByKey = {}
    for record in records:
        step = record.get("step")
        if not isinstance(step, int | float):
            continue
        for key, value in record.items():
            if isinstance(value, int | float):
                points.setdefault(key, []).append((step, value))
    return points


def curves(
    points: PointsByKey,
    evaluated: Collection[str],
    num_buckets: int = NUM_BUCKETS,
    wide: str | None = WIDE,
) -> list[Markup]:
    """A figure for each quantity that there are points of; the loss first, and wide.

    Args:
        evaluated: the keys that evaluations gave, see `evaluated_keys`.
        num_buckets: the most pieces of a curve, but for the wide one.
        wide: the key of the wide one; None: none is.
    """
    figures = [_figure(quantity, points, num_buckets, wide) for quantity in QUANTITIES]
    known = {key for q in QUANTITIES for key in (q.key, q.marks_key)} | POSITION_KEYS
    further = [key for key in points if key not in known][:MAX_FURTHER_CHARTS]
    figures += [_further_figure(key, points[key], key in evaluated, num_buckets) for key in further]
    return [figure for figure in figures if figure]


def evaluated_keys(records: Iterable[Record]) -> set[str]:
    """The keys of the records of evaluations."""
    return {key for record in records if record.get("kind") == EVALUATION for key in record}


def holes(points: PointsByKey) -> list[str]:
    """One sentence for each quantity with values that are not finite."""
    gaps_by_key = {key: find_gaps(pairs) for key, pairs in points.items()}
    return [
        f"{readable_key(key)}: {describe_gaps(gaps, max_named=3)}"
        for key, gaps in gaps_by_key.items()
        if gaps
    ]


def _figure(
    quantity: Quantity, points_of: PointsByKey, num_buckets: int, wide: str | None
) -> Markup:
    is_wide = quantity.key == wide
    chart = chart_of(quantity, points_of, NUM_BUCKETS if is_wide else num_buckets)
    if chart is None:
        return raw_markup("")
    points, _ = _in_units(quantity.key, points_of.get(quantity.key, []))
    return _draw(chart, points, is_wide)


def chart_of(
    quantity: Quantity, points_of: PointsByKey, num_buckets: int = NUM_BUCKETS
) -> Chart | None:
    """How a quantity is drawn; None where there is no point of it."""
    points = points_of.get(quantity.key, [])
    marks = points_of.get(quantity.marks_key, [])
    if not points and not marks:
        return None
    points, format_value = _in_units(quantity.key, points)
    return Chart(
        quantity.title,
        make_curve(points, num_buckets, quantity.is_noisy),
        marks,
        format_value,
        from_zero=quantity.from_zero,
        may_be_log=quantity.may_be_log,
    )


def _further_figure(key: str, points: Points, is_evaluation: bool, num_buckets: int) -> Markup:
    """A number that an evaluation or an extension added; an evaluation's are drawn as dots."""
    format_value = format_share if "exact_match" in key else format_number
    title = readable_key(key.removeprefix("eval_")).capitalize()
    title += ", seconds" if key.endswith("_seconds") else ""
    if is_evaluation:
        return _draw(Chart(f"{title}, held out", make_curve([]), points, format_value), [])
    return _draw(Chart(title, make_curve(points, num_buckets), [], format_value), points)


def _in_units(key: str, points: Points) -> tuple[Points, Callable[[float], str]]:
    """Bytes become the unit that fits the largest value, so that the axis has round numbers."""
    if not key.endswith("_bytes"):
        return points, format_number
    largest = max((value for _, value in points if not not_finite_name(value)), default=0.0)
    size, unit = (2**30, "GiB") if largest >= 2**30 else (2**20, "MiB")
    scaled = [(step, value / size) for step, value in points]
    return scaled, lambda value: f"{format_number(value, 3)} {unit}"


def _draw(chart: Chart, points: Points, is_wide: bool = False) -> Markup:
    picture = raw_markup(render_chart(chart))
    if is_wide:
        wide = raw_markup(render_chart(chart, 980, 300))
        picture = joined(
            [element("div", wide, css_class="wide"), element("div", picture, css_class="narrow")]
        )
    last = [chart.format_value(p[-1][1]) for p in (points, chart.marks) if p]
    now = element("span", "last " + " · held out ".join(last), css_class="now")
    return element("figure", element("h3", chart.title, now), picture, _caption(chart, points))


def _caption(chart: Chart, points: Points) -> Markup:
    keys: list[tuple[str, str | None]] = []
    if points and chart.marks:
        keys += [("training", "key"), ("held out", "key held-out")]
    if chart.curve.is_downsampled:
        keys.append(("lowest to highest of neighbouring records", "key band"))
    elif chart.curve.is_smoothed:
        keys.append(("each record; the line is their average", "key band"))
    if uses_log_scale(chart):
        keys.append(("logarithmic scale", "key none"))
    if gaps := [*chart.curve.gaps, *find_gaps(chart.marks)]:
        keys.append((f"not finite: {describe_gaps(gaps, max_named=2)}", "bad"))
    return element("figcaption", *[element("span", text, css_class=key) for text, key in keys])
