"""Small files that stand for gigabytes: rows of bounded size come of them, or a refusal."""

from pathlib import Path

import pytest

from tests.faults import hostile_data
from tests.faults.hostile_data import BOMBS, MEMORY_BYTES, QUICK, figures
from tests.slow import slow, slow_but


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the files, which take long to write."""
    return tmp_path_factory.mktemp("hostile")


def check(measured: dict, names: list[str], folder: Path) -> None:
    assert sorted(measured["files"]) == sorted(names)
    assert measured["other_errors"] == {}
    assert measured["peak_mib"] << 20 < MEMORY_BYTES
    for name in names:
        assert (folder / name).stat().st_size < 8 << 20


def test_what_stands_for_gigabytes_takes_little_memory(folder: Path) -> None:
    measured = figures(folder, QUICK, 60)
    check(measured, QUICK, folder)
    assert measured["files"]["dictionary.parquet"] == f"{hostile_data.NUM_ROWS} Row"
    assert measured["files"]["structs.parquet"] == f"{hostile_data.NUM_ROWS} Row"
    assert measured["files"]["list.parquet"] == "1 BadRow"
    refused = "refused: data.parquet_too_large(file={}, part=data.parquet_page(column="
    assert measured["files"]["claim.parquet"].startswith(refused.format("claim.parquet"))
    assert measured["files"]["lists.jsonl.gz"] == "3 BadRow"
    assert measured["files"]["one_line.jsonl.zst"] == "1 BadRow"
    assert measured["files"]["one_text.xlsx"] == "118 BadRow"
    assert measured["files"]["passage.txt.gz"] == "1 BadRow, 1 Row"


@slow
def test_no_kind_of_file_takes_more_than_it_may(tmp_path: Path) -> None:
    """Slow, because 34 files are read, and 2,000 that are damaged."""
    measured = figures(tmp_path, [*BOMBS], 2000)
    check(measured, [*BOMBS], tmp_path)
    refused = "refused: data.parquet_too_large(file=pages.parquet, part=data.parquet_page(column="
    assert measured["files"]["pages.parquet"].startswith(refused)


@pytest.mark.parametrize(
    ("limit", "name"),
    slow_but(
        [("row limit", "list.parquet")],
        [("page limit", "pages.parquet"), ("row limit", "list.parquet")],
    ),
)
def test_without_a_limit_it_shows(limit: str, name: str, folder: Path) -> None:
    """The same files then take all the memory that the process may have, or most of it."""
    measured = figures(folder, [name], 0, without=limit)
    died = (
        "died" in measured or "MemoryError" in str(measured) or "memory" in str(measured["files"])
    )
    assert died or measured["peak_mib"] << 20 > MEMORY_BYTES // 2, measured
