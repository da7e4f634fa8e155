"""Which rows a run has trained on."""

from pathlib import Path

import numpy as np
import pytest

from infrastructure.run import trained_rows as module
from infrastructure.run.directory import RunDirectory
from infrastructure.run.trained_rows import Contents, record_trained_rows, trained_rows

LARGEST = 2**64 - 1


def contents(*values: int) -> Contents:
    return np.array(values, dtype=np.uint64)


def test_rows_are_added_and_each_counts_once(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert trained_rows(run) is None
    record_trained_rows(run, contents(LARGEST, 3, 3))
    record_trained_rows(run, contents(7, 3))
    known = trained_rows(run)
    assert known is not None
    assert len(known.hashes) == 3
    assert known.hashes.tolist() == sorted(known.hashes.tolist())
    assert known.num_among(contents(3, 8, 7, LARGEST, 1 << 32, 0)) == 3
    assert known.num_among(contents(7)) == 1
    assert known.num_among(contents(8, LARGEST - 1)) == 0


def test_no_row_is_found_without_the_secret(tmp_path: Path) -> None:
    runs = [RunDirectory(tmp_path / name) for name in ("one", "other", "child")]
    for run in runs:
        run.path.mkdir()
    one, other = runs[:2]
    record_trained_rows(one, contents(3, 1 << 40))
    record_trained_rows(other, contents(3, 1 << 40))
    first, second = trained_rows(one), trained_rows(other)
    assert first is not None
    assert second is not None
    assert not {*first.hashes.tolist()} & {*second.hashes.tolist(), 3, 1 << 40}
    assert first.key not in repr(first)
    record_trained_rows(runs[2], contents(5), first)
    child = trained_rows(runs[2])
    assert child is not None
    assert child.num_among(contents(3, 1 << 40, 5, 6)) == 3
    record_trained_rows(runs[2], contents(6))  # the same secret again
    again = trained_rows(runs[2])
    assert again is not None
    assert again.num_among(contents(3, 1 << 40, 5, 6)) == 4
    record_trained_rows(runs[2], contents(8), first)  # it resumes with other rows
    resumed = trained_rows(runs[2])
    assert resumed is not None
    assert resumed.num_among(contents(3, 1 << 40, 5, 6, 8)) == 5


def test_of_many_rows_those_with_the_smallest_hashes_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path)
    record_trained_rows(run, contents(9, 4, LARGEST))
    all_of_them = trained_rows(run)
    assert all_of_them is not None
    monkeypatch.setattr(module, "MOST_ROWS", 2)
    record_trained_rows(run, contents(4))
    known = trained_rows(run)
    assert known is not None
    assert known.hashes.tolist() == all_of_them.hashes.tolist()[:2]


KEY = '"key": "' + "ab" * 32 + '"'


@pytest.mark.parametrize(
    "text",
    [
        *("{", "{}", f'{{{KEY}, "rows": 3}}', f'{{{KEY}, "rows": "?"}}'),
        *(f'{{{KEY}, "rows": "AAAA"}}', '{"rows": ""}', '{"key": "ab", "rows": ""}'),
        '{"key": "?", "rows": ""}',
    ],
)
def test_a_damaged_file_is_none(tmp_path: Path, text: str) -> None:
    run = RunDirectory(tmp_path)
    run.trained_rows_file.write_text(text)
    assert trained_rows(run) is None
    run.trained_rows_file.write_text(f'{{{KEY}, "rows": ""}}')
    assert trained_rows(run) is not None
