"""The stages on the report's page."""

from pathlib import Path
from typing import Any

import pytest

from infrastructure.monitoring.records.run_reader import RunFacts
from infrastructure.monitoring.report.stage_section import stages


def page(records: Any) -> str:
    return str(stages(RunFacts(Path("run"), summary={"stages": records})))


def test_times_and_shares_are_shown() -> None:
    found = page([{"name": "model", "what": "loaded", "seconds": 1}, {"name": "x", "seconds": 3}])
    assert "What took how long" in found
    assert "25 %" in found
    assert "75 %" in found
    assert "loaded" in found


def test_a_stage_that_ended_the_run_is_named() -> None:
    assert "ended by OSError" in page([{"name": "save", "seconds": 1, "error": "OSError"}])


@pytest.mark.parametrize("records", [None, [], "x", [1], [{"name": "a", "seconds": "long"}], {}])
def test_damaged_records_are_left_out(records: Any) -> None:
    assert page(records) == ""
