import math
import re
from typing import Any

import pytest

from infrastructure.core.json_text import parse_json
from infrastructure.monitoring.drawing.charts import (
    Chart,
    chart_json,
    charts_of,
    curves,
    describe_gaps,
    figure,
    holes,
)
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
    points = [(20.0, 0.7512345), (10.0, 0.25), (15.0, math.nan)]
    marks = [(123456789.0, 0.5)]
    chart = Chart("", points, marks, format_share, True, True, "hours", False, 3600.0, 1024.0)
    assert numbers_of(chart) == {
        **{"x": [10, 15, 20], "y": [0.25, None, 0.75123], "gaps": [[15, 15]]},
        **{"marks_x": [123456790], "marks_y": [0.5], "scale": 100, "unit": "%"},
        **{"axis": "hours", "x_unit": 3600, "y_unit": 1024},
        **{"zero": True, "log": True, "noisy": False},
    }
    plain = numbers_of(Chart(""))
    names = ("scale", "unit", "axis", "x_unit", "y_unit", "zero", "log", "noisy")
    assert [plain[name] for name in names] == [1, "", "step", 1, 1, False, False, True]
    assert [Chart("", points[:1]).last, chart.last] == ["0.7512", "NaN · held out 50.0%"]


ONE = [(1.0, 0.5)]


def test_common_curves_come_first_and_of_others_twelve_are_drawn() -> None:
    keys = ["b_seconds", "epoch", "tokens", "seconds", "num_tokens", "quantum_x", "memory_bytes"]
    keys += ["tokens_per_second", "grad_norm", "learning_rate", "eval_loss", "eval_f1"]
    points = dict.fromkeys([*keys, *(f"x{number:02}" for number in range(12))], ONE)
    charts = charts_of(points, {"eval_loss", "eval_f1"})
    shown = [(c.title, c.from_zero, c.may_be_log, c.is_noisy) for c in charts.values()]
    assert shown[:7] == [
        ("Loss", False, True, True),
        ("Learning rate", True, False, False),
        ("Gradient norm, before clipping", False, True, True),
        ("Tokens per second", True, False, True),
        ("Peak memory", True, False, False),
        ("B, seconds", False, False, True),
        ("F1, held out", False, False, True),
    ]
    assert [*charts][7:] == [f"x{number:02}" for number in range(10)]
    assert (charts["loss"].points, charts["loss"].marks, charts["loss"].last) == ([], ONE, "0.5000")
    assert (charts["eval_f1"].points, charts["eval_f1"].marks) == ([], ONE)
    assert "quantum_x" in charts_of({"quantum_x": ONE * 2}, {})
    share = charts_of({"mean_token_accuracy": ONE}, {})["mean_token_accuracy"]
    assert (share.title, share.last) == ("Tokens predicted correctly (higher is better)", "50.0%")


@pytest.mark.parametrize(
    ("largest", "last", "unit"), [(2**30, "1 GiB", 2**30), (2**30 - 1024, "1,024 MiB", 2**20)]
)
def test_memory_has_the_unit_of_its_largest_value(largest: float, last: str, unit: int) -> None:
    points = [(1.0, math.inf), (2.0, float(largest))]
    chart = charts_of({"memory_bytes": points}, {})["memory_bytes"]
    assert (chart.y_unit, chart.points[1]) == (unit, (2.0, largest / unit))
    assert chart.last == last


def test_a_caption_explains_what_is_drawn() -> None:
    def captions(chart: Chart) -> list[str]:
        [shown] = curves({"loss": chart})
        return re.findall(r'<span class="(?:key|bad)[^<]*</span>', shown)

    training, held_out, band = (
        f'<span class="{css}">{text}</span>'
        for css, text in (
            ("key", "training"),
            ("key held-out", "held out"),
            ("key band", "monitoring.band_of_records()"),
        )
    )
    line = [(float(step), 1.0) for step in range(101)]
    assert captions(Chart("", line[1:])) == captions(Chart("", [], line)) == []
    assert captions(Chart("", line)) == [band]
    assert captions(Chart("", line, is_noisy=False)) == []
    bad = [(1.0, math.nan), (2.0, math.inf)]
    more = "monitoring.more_gaps(count=1, num_records=1)"
    gaps = f'<span class="bad">not finite: NaN at step 1; Infinity at step 2; {more}</span>'
    assert captions(Chart("", line, bad + bad[:1])) == [training, held_out, band, gaps]
    wide, small = curves({"loss": Chart("L", line), "other": Chart("O", ONE)})
    assert wide.startswith('<figure class="wide" data-key="loss" data-chart="')
    assert small.startswith('<figure data-key="other" data-chart="')
    assert '<h3><span>O</span><span class="now">last 0.5000</span></h3>' in small


def test_holes_are_named_by_quantity() -> None:
    bad = [(float(step), math.nan if step % 2 else 1.0) for step in range(1000, 1010)]
    assert holes({"grad_norm": bad, "loss": ONE}) == [
        "grad norm: NaN at step 1,001; NaN at step 1,003; NaN at step 1,005;"
        " monitoring.more_gaps(count=2, num_records=2)"
    ]


def test_text_in_a_figure_is_never_markup() -> None:
    title = "</script><script>alert('x')\u2028"
    html = figure(title, Chart(title, [(1, 1.0), (2, 2.0)], axis=title))
    assert "<script" not in html
    assert "\u2028" not in html.partition('data-chart="')[2].partition('"')[0]
