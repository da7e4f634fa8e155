import math
from typing import Any

from infrastructure.core.json_text import parse_json
from infrastructure.monitoring.drawing.charts import Chart, chart_json, describe_gaps, figure
from infrastructure.monitoring.drawing.downsampling import find_gaps
from infrastructure.monitoring.drawing.formatting import format_share


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
    assert (shown["zero"], shown["log"], shown["noisy"]) == (True, False, True)


def test_text_in_a_figure_is_never_markup() -> None:
    title = "</script><script>alert('x')\u2028"
    html = figure(title, Chart(title, [(1, 1.0), (2, 2.0)], axis=title))
    assert "<script" not in html
    assert "\u2028" not in html.partition('data-chart="')[2].partition('"')[0]
