"""Which rows a run has trained on."""

from pathlib import Path

import numpy as np
import pytest

from infrastructure.run import trained_rows as module
from infrastructure.run.directory import RunDirectory
from infrastructure.run.trained_rows import record_trained_rows, trained_rows

LARGEST = 2**64 - 1


def test_rows_are_added_and_each_counts_once(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert trained_rows(run) is None
    record_trained_rows(run, np.array([LARGEST, 3, 3], dtype=np.uint64))
    record_trained_rows(run, np.array([7, 3], dtype=np.uint64))
    known = trained_rows(run)
    assert known is not None
    assert known.tolist() == [3, 7, LARGEST]


def test_of_many_rows_those_with_the_smallest_hashes_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 2)
    run = RunDirectory(tmp_path)
    record_trained_rows(run, np.array([9, 4, LARGEST], dtype=np.uint64))
    record_trained_rows(run, np.array([1], dtype=np.uint64))
    known = trained_rows(run)
    assert known is not None
    assert known.tolist() == [1, 4]


@pytest.mark.parametrize("text", ["{", "{}", '{"rows": 3}', '{"rows": "?"}', '{"rows": "AAAA"}'])
def test_a_damaged_file_is_none(tmp_path: Path, text: str) -> None:
    run = RunDirectory(tmp_path)
    run.trained_rows_file.write_text(text)
    assert trained_rows(run) is None
