"""The stages on the report's page."""

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.monitoring.records.run_view import read_view
from infrastructure.monitoring.report.stage_section import stages

RECORDS = [{"name": "model", "what": "loaded", "seconds": 1}, {"name": "x", "seconds": 3}]


def page(folder: Path, records: Any) -> str:
    (folder / "summary.json").write_text(json.dumps({"stages": records}))
    return str(stages(read_view(folder)))


def test_times_and_shares_are_shown(tmp_path: Path) -> None:
    found = page(tmp_path, RECORDS)
    assert "monitoring.timing_heading" in found
    assert "25 %" in found
    assert "75 %" in found
    assert "loaded" in found


def test_of_several_sessions_the_last_one_is_meant(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"went_on": [{"step": 4, "was_killed": True}]}))
    assert "monitoring.timing_heading" in page(tmp_path, RECORDS)


def test_a_stage_that_ended_the_run_is_named(tmp_path: Path) -> None:
    assert "ended by OSError" in page(
        tmp_path, [{"name": "save", "seconds": 1, "error": "OSError"}]
    )


@pytest.mark.parametrize("records", [None, [], "x", [1], [{"name": "a", "seconds": "long"}], {}])
def test_damaged_records_are_left_out(tmp_path: Path, records: Any) -> None:
    assert page(tmp_path, records) == ""
