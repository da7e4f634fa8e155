"""Opening a stream at two positions, and the page that compares them."""

from pathlib import Path

import pytest

from benchmarks.stream_resume import measure, page, seconds_until_rows, write_rows
from infrastructure.data.serving.streaming_dataset import StreamingDataset


def test_every_position_is_opened_as_often(tmp_path: Path) -> None:
    times = measure(tmp_path, 5000, (100, 4000), rounds=3)
    assert {position: len(each) for position, each in times.seconds.items()} == {100: 3, 4000: 3}
    assert times.index_seconds > 0
    assert "| 4,000 |" in page(times)


def test_rows_of_another_position_are_no_measurement(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", 5000)
    index = StreamingDataset(tmp_path / "rows.jsonl").build_index()
    write_rows(tmp_path / "rows.jsonl", 5000)
    moved = index.windows.copy()
    moved[1], moved[4] = index.windows[4], index.windows[1]
    wrong = type(index)(moved, index.is_used)
    with pytest.raises(RuntimeError, match="at row 1500"):
        seconds_until_rows(tmp_path / "rows.jsonl", wrong, 1500)
