"""What was measured is found again, and a broken file never matters."""

from pathlib import Path

import pytest

from infrastructure.optimization.tuning_cache import MAX_ENTRIES, TuningCache


def test_a_result_is_found_by_exactly_its_key(tmp_path: Path) -> None:
    TuningCache(tmp_path).put({"device": "a", "longest": 7}, {"size": 4})
    assert TuningCache(tmp_path).get({"device": "a", "longest": 7}) == {"size": 4}
    assert TuningCache(tmp_path).get({"device": "a", "longest": 8}) is None


def test_a_new_result_replaces_the_old_one(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path)
    cache.put({"k": 1}, {"size": 4})
    cache.put({"k": 1}, {"size": 8})
    assert cache.get({"k": 1}) == {"size": 8}


def test_the_oldest_are_forgotten(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path)
    for number in range(MAX_ENTRIES + 1):
        cache.put({"k": number}, {"size": number})
    assert cache.get({"k": 0}) is None
    assert cache.get({"k": MAX_ENTRIES}) == {"size": MAX_ENTRIES}


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b'[{"key": 3, "result": {}}]', b"\xff"])
def test_a_damaged_file_holds_nothing_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    cache = TuningCache(tmp_path)
    cache.path.write_bytes(content)
    assert cache.get({"k": 1}) is None
    cache.put({"k": 1}, {"size": 2})
    assert cache.get({"k": 1}) == {"size": 2}


def test_a_folder_that_cannot_be_written_is_told_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    TuningCache(tmp_path / "file").put({"k": 1}, {"size": 2})
    assert "is not remembered" in caplog.text
