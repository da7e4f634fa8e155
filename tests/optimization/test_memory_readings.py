import gc

from infrastructure.core.hardware import memory
from infrastructure.optimization.memory_readings import read_memory, release_memory

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
