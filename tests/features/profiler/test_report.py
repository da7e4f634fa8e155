"""The report's section on the profiled steps."""

import re
from pathlib import Path
from typing import Any

import pytest

from infrastructure.core.files import write_json
from infrastructure.features.profiler.report import PROFILE_FILE, profile_section
from infrastructure.monitoring.records.run_view import read_view

PROFILE: dict[str, Any] = {
    "first_step": 3,
    "last_step": 4,
    "trace": "logs/performance/trace.json",
    "rows": [{"name": "aten::mm<x>", "calls": 1200, "processor_seconds": 0.5, "gpu_seconds": 0.25}],
}


def test_a_profile_is_a_table(tmp_path: Path) -> None:
    write_json(tmp_path / PROFILE_FILE, PROFILE)
    shown = profile_section(read_view(tmp_path))
    assert "profiler.heading(first=3, last=4)" in shown
    assert "profiler.trace_file(trace=logs/performance/trace.json)" in shown
    assert re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", shown) == [
        *("operation", "calls", "CPU time", "GPU time"),
        *("aten::mm&lt;x&gt;", "1,200", "500.0 ms", "250.0 ms"),
    ]
    rows = [{**row, "name": f"{'x' * 79}{n:02}"} for row in PROFILE["rows"] for n in range(16)]
    write_json(tmp_path / PROFILE_FILE, {**PROFILE, "rows": rows})
    shown = profile_section(read_view(tmp_path))
    assert (shown.count("<tr>"), shown.count("…")) == (16, 15)


@pytest.mark.parametrize("damaged", ["", "[]", "{}", '{"rows": 3}', '{"rows": [{}]}'])
def test_a_damaged_profile_is_left_out(tmp_path: Path, damaged: str) -> None:
    (tmp_path / PROFILE_FILE).parent.mkdir(parents=True)
    (tmp_path / PROFILE_FILE).write_text(damaged)
    assert profile_section(read_view(tmp_path)) == ""
