"""What of prepared data everybody is shown before the first step."""

import pytest

from infrastructure.data.preparation.data_report import DataReport
from infrastructure.data.preparation.quarantine import Quarantine
from infrastructure.data.readers.rows import EMPTY, WRONG_TYPE, BadRow


@pytest.mark.parametrize("is_verbose", [True, False])
@pytest.mark.parametrize("bad_lines", [[], [31], [47, 12, 8]])
def test_a_row_that_is_set_aside_is_named_with_its_place(
    bad_lines: list[int], is_verbose: bool
) -> None:
    """The first one in short, and the first one of each reason in full."""
    quarantine = Quarantine()
    reasons = [EMPTY, WRONG_TYPE, EMPTY]
    quarantine.add(
        BadRow("rows.jsonl", line, reason, "planted", "", 0)
        for line, reason in zip(bad_lines, reasons, strict=False)
    )
    report = DataReport(rows_read=60, num_train=60 - len(bad_lines), quarantine=quarantine)
    text = "\n".join(report.lines(is_verbose))
    named = [line for line in (8, 12, 31, 47) if f"rows.jsonl:{line}" in text]
    assert named == sorted(bad_lines[: 2 if is_verbose else 1])
