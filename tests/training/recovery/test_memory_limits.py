"""What fitted is remembered, whatever happens to the file."""

import threading
from pathlib import Path

import pytest
import torch

from infrastructure.training.recovery.memory_limits import (
    FILE,
    MAX_LIMITS,
    MemoryLimits,
    describe_device,
)

T4 = {"device": "Tesla T4", "memory_bytes": 15 << 30, "model": "a", "lora": True}


def test_a_size_is_remembered_for_exactly_what_decides_it(tmp_path: Path) -> None:
    MemoryLimits(tmp_path / "cache").remember(T4, 4)
    again = MemoryLimits(tmp_path / "cache")
    assert again.get(T4) == 4
    for other in ({**T4, "lora": False}, {**T4, "memory_bytes": 1}, {**T4, "model": "b"}, {}):
        assert again.get(other) is None
    again.remember(T4, 2)
    assert again.get(T4) == 2


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"\xff\xfe", b'{"a": 1}', b"[" * 100_000, b'[{"key": 1}, 2, null]', b"[]"],
)
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE).write_bytes(damage)
    limits = MemoryLimits(tmp_path)
    assert limits.get(T4) is None
    limits.remember(T4, 4)
    assert limits.get(T4) == 4


@pytest.mark.parametrize("size", ["4", 0, -1, 2.5, True, None])
def test_a_size_that_is_none_is_passed_over(tmp_path: Path, size: object) -> None:
    MemoryLimits(tmp_path).remember(T4, size)  # type: ignore[arg-type]
    assert MemoryLimits(tmp_path).get(T4) is None


def test_the_file_stays_small(tmp_path: Path) -> None:
    limits = MemoryLimits(tmp_path)
    for number in range(MAX_LIMITS + 5):
        limits.remember({"model": str(number)}, 1)
    assert limits.get({"model": "4"}) is None
    assert limits.get({"model": "5"}) == 1
    assert limits.get({"model": str(MAX_LIMITS + 4)}) == 1


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    MemoryLimits(tmp_path / "file").remember(T4, 4)
    assert "is not remembered" in caplog.text


def test_writers_at_the_same_time_leave_a_whole_file(tmp_path: Path) -> None:
    def write(number: int) -> None:
        for _ in range(20):
            MemoryLimits(tmp_path).remember({"model": str(number)}, number + 1)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [MemoryLimits(tmp_path).get({"model": str(number)}) for number in range(4)]
    assert all(size in (None, number + 1) for number, size in enumerate(found))
    assert any(found)


def test_the_processor_is_a_device_with_a_name_and_memory() -> None:
    facts = describe_device(torch.device("cpu"))
    assert facts["device"]
    assert facts["memory_bytes"] > 1 << 28
