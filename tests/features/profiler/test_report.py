"""The report's section on the profiled steps."""

from pathlib import Path

import pytest

from infrastructure.core.files import write_json
from infrastructure.features.profiler.report import PROFILE_FILE, profile_section
from infrastructure.monitoring.records.run_view import read_view

PROFILE = {
    "first_step": 3,
    "last_step": 4,
    "trace": "logs/performance/trace.json",
    "rows": [{"name": "aten::mm<x>", "calls": 1200, "processor_seconds": 0.5, "gpu_seconds": 0.25}],
}


def test_a_profile_is_a_table(tmp_path: Path) -> None:
    write_json(tmp_path / PROFILE_FILE, PROFILE)
    shown = profile_section(read_view(tmp_path))
    assert "profiler.heading" in shown
    assert "aten::mm&lt;x&gt;" in shown
    assert "1,200" in shown
    assert "500.0 ms" in shown
    assert "250.0 ms" in shown


@pytest.mark.parametrize("damaged", ["", "[]", "{}", '{"rows": 3}', '{"rows": [{}]}'])
def test_a_damaged_profile_is_left_out(tmp_path: Path, damaged: str) -> None:
    (tmp_path / PROFILE_FILE).parent.mkdir(parents=True)
    (tmp_path / PROFILE_FILE).write_text(damaged)
    assert profile_section(read_view(tmp_path)) == ""
