"""What was found out is found again, and a broken file never matters."""

import threading
from pathlib import Path
from typing import Any

import pytest

from infrastructure.core.json_cache import MAX_BYTES, MAX_ENTRIES, JsonCache

T4 = {"device": "Tesla T4", "memory_bytes": 15 << 30, "model": "a", "lora": True}


def is_int(value: Any) -> bool:
    return type(value) is int


def remembered(folder: Path) -> JsonCache:
    return JsonCache(folder / "sizes.json", "the size", is_int)


def test_a_value_is_found_by_exactly_its_key(tmp_path: Path) -> None:
    remembered(tmp_path / "cache").put(T4, 4)
    again = remembered(tmp_path / "cache")
    assert again.get(T4) == 4
    for other in ({**T4, "lora": False}, {**T4, "memory_bytes": 1}, {**T4, "model": "b"}, {}):
        assert again.get(other) is None


def test_a_new_value_replaces_the_old_one(tmp_path: Path) -> None:
    sizes = remembered(tmp_path)
    sizes.put(T4, 4)
    sizes.put({"k": 1}, 9)
    sizes.put(T4, 8)
    assert sizes.get(T4) == 8
    assert sizes.get({"k": 1}) == 9


def test_of_many_those_longest_unchanged_are_forgotten(tmp_path: Path) -> None:
    sizes = remembered(tmp_path)
    for number in range(MAX_ENTRIES):
        sizes.put({"k": number}, number)
    sizes.put({"k": 0}, 0)
    sizes.put({"k": "one more"}, 1)
    assert sizes.get({"k": 0}) == 0
    assert sizes.get({"k": 1}) is None
    assert sizes.get({"k": 2}) == 2


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"a": 1}',
        b"[" * 100_000,
        b'[{"key": 1}, 2, null]',
        b'[{"key": {"k": 1}, "value": "no size"}]',
        b'[{"key": {"k": 1}}]',
        b'[{"key": {"k": 1}, "value": 3}]' + b" " * MAX_BYTES,
        b"[]",
    ],
)
def test_a_damaged_file_is_as_good_as_none_and_is_replaced(tmp_path: Path, damage: bytes) -> None:
    sizes = remembered(tmp_path)
    sizes.path.write_bytes(damage)
    assert sizes.get({"k": 1}) is None
    sizes.put({"k": 1}, 2)
    assert sizes.get({"k": 1}) == 2


def test_a_folder_that_cannot_be_written_is_reported_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    remembered(tmp_path / "file").put(T4, 2)
    assert "core.cache_not_written(what=the size, " in caplog.text


def test_writers_at_the_same_time_leave_a_whole_file(tmp_path: Path) -> None:
    def write(number: int) -> None:
        for _ in range(20):
            remembered(tmp_path).put({"k": number}, number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [remembered(tmp_path).get({"k": number}) for number in range(4)]
    assert all(value in (None, number) for number, value in enumerate(found))
    assert any(value is not None for value in found)
