import math
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from infrastructure.core.json_text import parse_json
from infrastructure.monitoring.drawing.charts import (
    Chart,
    chart_json,
    describe_gaps,
    figure,
    render_chart,
    tick_labels,
    uses_log_scale,
)
from infrastructure.monitoring.drawing.downsampling import Points, find_gaps
from infrastructure.monitoring.drawing.formatting import format_number, format_share

WIDTH, HEIGHT = 440, 220


def draw(points: Points, marks: Points | None = None, **options: bool) -> ElementTree.Element:
    chart = Chart("Loss <b>", points, marks or [], format_number, **options)
    return ElementTree.fromstring(render_chart(chart, WIDTH, HEIGHT))


def by_class(svg: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [part for part in svg.iter() if part.get("class") == name]


def coordinates(part: ElementTree.Element) -> list[tuple[float, float]]:
    pairs = [pair.split(",") for pair in str(part.get("points")).split()]
    return [(float(x), float(y)) for x, y in pairs]


def test_a_falling_loss_falls_on_the_picture() -> None:
    svg = draw([(step, 10.0 - step) for step in range(1, 9)])
    (line,) = by_class(svg, "main")
    xs, ys = zip(*coordinates(line), strict=True)
    assert list(xs) == sorted(xs)
    assert list(ys) == sorted(ys)  # y grows downwards
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in coordinates(line))


def test_the_title_is_escaped() -> None:
    assert draw([(1, 1.0)]).get("aria-label") == "Loss <b>"


def test_a_gap_is_a_band_and_a_break() -> None:
    svg = draw([(1, 1.0), (2, 2.0), (3, math.nan), (4, math.nan), (5, 1.0), (6, 2.0)])
    (band,) = by_class(svg, "gap")
    assert band[0].text == "NaN at steps 3–4 (2 records)"
    assert len(by_class(svg, "main")) == 2


def test_gaps_that_lie_on_each_other_share_a_band() -> None:
    points = [(step, math.nan if step % 2 else 1.0) for step in range(2000)]
    svg = draw(points)
    assert len(by_class(svg, "gap")) == 1


def test_evaluations_are_dots_with_their_numbers() -> None:
    svg = draw([(1, 1.0), (10, 0.5)], marks=[(5, 0.8), (10, math.nan)])
    (dot,) = by_class(svg, "mark")
    assert dot[0].text == "step 5: 0.8000"


def test_very_many_evaluations_become_a_line() -> None:
    svg = draw([], marks=[(step, float(step % 5)) for step in range(5000)])
    assert by_class(svg, "mark") == []
    (line,) = by_class(svg, "mark-line")
    assert len(coordinates(line)) < 400


def test_a_wide_range_of_positive_values_is_logarithmic() -> None:
    wide = [(1, 100.0), (2, 0.01)]
    assert uses_log_scale(Chart("x", wide, may_be_log=True))
    assert not uses_log_scale(Chart("x", wide))
    assert not uses_log_scale(Chart("x", [(1, 100.0), (2, 0.0)], may_be_log=True))
    svg = draw(wide, may_be_log=True)
    assert {"0.01", "1", "100"} <= {part.text for part in svg.iter("text")}


def test_a_run_begins_at_step_0_unless_it_was_cut() -> None:
    svg = draw([(5, 1.0), (200, 0.5)])
    assert "0" in {part.text for part in svg.iter("text")}


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(1, math.nan)],
        [(1, 2.0)],
        [(1, 0.0), (2, 0.0)],
        [(1, 1e-30), (2, 1e30)],
        [(1, -5.0), (2, 5.0)],
        [(7, 1.0), (7, 2.0)],
    ],
)
@pytest.mark.parametrize("options", [{}, {"from_zero": True}, {"may_be_log": True}])
def test_odd_numbers_still_give_a_picture(points: Points, options: dict[str, bool]) -> None:
    svg = draw(points, **options)
    assert not any("nan" in str(value) for part in svg.iter() for value in part.attrib.values())


def test_gaps_are_named_up_to_a_limit() -> None:
    gaps = find_gaps([(step, math.nan if step % 2 else 1.0) for step in range(20)])
    assert describe_gaps(gaps, max_named=2) == (
        "NaN at step 1; NaN at step 3; monitoring.more_gaps(count=8, num_records=8)"
    )


def numbers_of(chart: Chart) -> dict[str, Any]:
    """What the page's script draws of a chart."""
    content = parse_json(chart_json(chart).encode())
    assert isinstance(content, dict)
    return content


def test_a_figure_gives_scripts_its_numbers_and_units() -> None:
    points = [(20.0, 0.75), (10.0, 0.25), (15.0, math.nan)]
    chart = Chart("Exact match", points, [(20, 0.5)], format_share, from_zero=True)
    shown = numbers_of(chart)
    assert (shown["x"], shown["y"]) == ([10, 15, 20], [0.25, None, 0.75])
    assert (shown["marks_x"], shown["marks_y"], shown["gaps"]) == ([20], [0.5], [[15, 15]])
    assert (shown["scale"], shown["unit"], shown["axis"]) == (100, " %", "step")
    assert (shown["zero"], shown["log"], shown["may_log"]) == (True, False, False)


def test_a_long_curve_is_thinned_and_keeps_its_spikes() -> None:
    points = [(step, 50.0 if step == 7777 else 1.0) for step in range(20_000)]
    shown = numbers_of(Chart("Loss", points))
    assert len(shown["x"]) <= 801
    assert max(shown["y"]) == 50.0


def test_text_in_a_figure_is_never_markup() -> None:
    title = "</script><script>alert('x')\u2028"
    html = figure(title, Chart(title, [(1, 1.0), (2, 2.0)], axis=title))
    assert "<script" not in html
    assert "\u2028" not in html.partition('data-chart="')[2].partition('"')[0]


def test_one_point_is_no_chart() -> None:
    assert Chart("x", [(1, 1.0)], [(1, 2.0)]).is_one_dot
    assert not Chart("x", [(1, 1.0), (2, 1.0)]).is_one_dot


def test_an_axis_may_count_something_else_than_steps() -> None:
    svg = render_chart(Chart("Load", [(0.0, 1.0), (9.0, 2.0)], axis="minutes"))
    assert ">minutes</text>" in svg
    assert ">step</text>" not in svg


def test_ticks_that_lie_close_together_have_enough_digits() -> None:
    svg = render_chart(Chart("Loss", [(1, 0.693147), (2, 0.693148)]))
    labels = re.findall(r'text-anchor="end">(0\.69\d*)<', svg)
    assert len(labels) > 2
    assert len(set(labels)) == len(labels)


def test_equal_distances_of_an_axis_are_shown_as_equal() -> None:
    ticks = [0.69225 + 0.00025 * number for number in range(7)]
    assert tick_labels(ticks)[:4] == ["0.69225", "0.6925", "0.69275", "0.693"]
    assert tick_labels([1, 2, 5, 10]) == ["1", "2", "5", "10"]
    assert tick_labels([12345.25, 12345.5]) == ["12,345.25", "12,345.5"]
    assert tick_labels([2.0]) == ["2"]
