import gc

import pytest
import torch

from infrastructure.core.hardware import Memory, memory
from infrastructure.optimization import memory_readings
from infrastructure.optimization.memory_readings import (
    DeviceMemory,
    MemoryInfo,
    read_memory,
    release_memory,
)

MIB = 1 << 20


def test_a_look_at_memory_is_the_machines_and_this_processs() -> None:
    info = read_memory()
    assert info.total_bytes == memory().total_bytes
    assert 0 < info.process_bytes <= info.peak_process_bytes
    assert 0 < info.available_bytes < info.total_bytes


def test_releasing_gives_free_pages_back_to_the_system() -> None:
    blocks = [bytearray(b"1" * 60_000) for _ in range(2000)]  # small ones stay with the allocator
    keep_the_top = bytearray(b"1" * 60_000)
    blocks.clear()
    gc.collect()
    assert release_memory() > 50 * MIB
    assert len(keep_the_top) > 0


def test_a_reading_has_each_size_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"resident_bytes": 7, "children_bytes": 8, "peak_resident_bytes": 9}
    for name, size in sizes.items():
        monkeypatch.setattr(memory_readings, name, lambda size=size: size)
    monkeypatch.setattr(memory_readings, "memory", lambda: Memory(800, 600, limited=True))
    of_gpu = {"memory_allocated": 1, "memory_reserved": 2, "max_memory_allocated": 3}
    for name, size in of_gpu.items():
        monkeypatch.setattr(torch.cuda, name, lambda index, size=size: 10 * size + index)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (40 + index, 50 + index))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    gpus = tuple(DeviceMemory(n, 10 + n, 20 + n, 30 + n, 40 + n, 50 + n) for n in (0, 1))
    assert read_memory() == MemoryInfo(800, 600, 7, 8, 9, gpus)


def test_what_is_released_is_what_the_process_has_less(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, emptied = iter([900, 700, 700, 900]), list[int]()
    monkeypatch.setattr(memory_readings, "resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: not emptied)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    assert [release_memory(), release_memory()] == [200, 0]
    assert emptied == [1]
