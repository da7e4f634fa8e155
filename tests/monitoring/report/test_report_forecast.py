"""Forecast and truth stand side by side in the report, and nothing broken breaks the page."""

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.monitoring.records.run_view import read_view
from infrastructure.monitoring.report.report_forecast import forecast

ROW = {"what": "peak_memory_bytes", "foretold": 1 << 30, "was": 1 << 29, "error": 1.0}


def page(folder: Path, summary: dict[str, Any], run: dict[str, Any] | None = None) -> str:
    for name, content in (("run", run or {}), ("summary", summary)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return str(forecast(read_view(folder)))


def test_forecast_and_truth_stand_side_by_side(tmp_path: Path) -> None:
    seconds = {"what": "seconds", "foretold": 59.0, "was": 60.0, "error": -0.02}
    html = page(tmp_path, {"forecast": [ROW, seconds]})
    assert "1.0 GiB" in html
    assert "512.0 MiB" in html
    assert "+100 %" in html
    assert "1 min 00 s" in html
    assert "-2.0 %" in html
    assert "time from the first step to the end" in html
    html = page(tmp_path, {"forecast": [{**seconds, "first_step": 60}]})
    assert "monitoring.forecast_time_since_resume" in html


def test_what_was_decided_is_shown_with_its_origin(tmp_path: Path) -> None:
    decided = {"training.batch_size": {"value": 16, "origin": "measured <here>"}}
    html = page(tmp_path, {}, {"decided": decided})
    assert "training.batch_size" in html
    assert "measured &lt;here&gt;" in html


@pytest.mark.parametrize(
    "summary",
    [{}, {"forecast": []}, {"forecast": 3}, {"forecast": [4, {"what": "x"}, {**ROW, "was": "?"}]}],
)
def test_nothing_known_gives_no_section(tmp_path: Path, summary: dict[str, Any]) -> None:
    assert page(tmp_path, summary) == ""
