"""Windows hold what fits, in rows and in bytes, and any item is found without counting."""

import numpy as np
import pytest

from infrastructure.data.store.stream_index import WindowIndexBuilder, estimated_bytes


def index_of(sizes: list[int], buffer_size: int, memory_bytes: int | None):
    builder = WindowIndexBuilder(buffer_size, memory_bytes)
    for row, size in enumerate(sizes):
        builder.add(0, 10 * row, row + 1, size, size > 0)
    return builder.finish()


def test_windows_respect_both_limits() -> None:
    index = index_of([3, 3, 3, 3, 9, 1, 20, 1], buffer_size=3, memory_bytes=10)
    assert index.column("num_items").tolist() == [3, 1, 2, 1, 1]  # 3+3+3, 3, 9+1, 20, 1
    assert index.column("num_bytes").tolist() == [9, 3, 10, 20, 1]
    assert index.column("first_row").tolist() == [0, 3, 4, 6, 7]
    assert index.column("offset").tolist() == [0, 30, 40, 60, 70]
    assert index_of([3] * 7, 3, None).column("num_items").tolist() == [3, 3, 1]


def test_unused_rows_are_passed_over() -> None:
    index = index_of([0, 5, 0, 5, 0], buffer_size=2, memory_bytes=None)
    assert index.column("first_row").tolist() == [1]
    assert index.is_used.tolist() == [False, True, False, True, False]
    assert index.num_items == 2


def test_a_window_never_crosses_files() -> None:
    builder = WindowIndexBuilder(10, None)
    for file in (0, 0, 1, 1, 1, 2):
        builder.add(file, 0, 1, 1, True)
    index = builder.finish()
    assert index.column("file").tolist() == [0, 1, 2]
    assert index.column("num_items").tolist() == [2, 3, 1]


@pytest.mark.parametrize("seed", range(5))
def test_any_item_is_found(seed: int) -> None:
    rng = np.random.RandomState(seed)
    index = index_of(rng.randint(0, 5, size=60).tolist(), rng.randint(1, 9), 12)
    places = [(w, i) for w, n in enumerate(index.column("num_items")) for i in range(n)]
    assert [index.find(item) for item in range(index.num_items)] == places
    assert index.find(index.num_items) == (len(index), 0)


def test_an_index_of_nothing() -> None:
    index = index_of([], 3, None)
    assert (len(index), index.num_items, index.find(0)) == (0, 0, (0, 0))


def test_the_layout_hash_sees_the_windows_alone() -> None:
    same = {index_of([1, size], 5, 100).layout_hash() for size in (1, 2)}
    assert len(same) == 1
    assert index_of([1, 1], 1, None).layout_hash() not in same


def test_sizes_grow_with_the_content() -> None:
    assert estimated_bytes("x" * 1000) == 1064
    assert estimated_bytes("é" * 1000) == 1064
    widths = {0x7F: 1, 0xFF: 1, 0x100: 2, 0xFFFF: 2, 0x10000: 4}
    for number, width in widths.items():
        assert estimated_bytes("a" + chr(number) * 998 + "a") == 64 + 1000 * width
    assert estimated_bytes(b"x" * 1000) == 1064
    assert estimated_bytes(None) == estimated_bytes(3) == 64
    of_list = 64 + 3 * 8 + 1064 + 64 + 64
    assert estimated_bytes(["x" * 1000, None, 3]) == of_list
    assert estimated_bytes(("x" * 1000, None, 3)) == of_list
    assert (
        estimated_bytes({"a": ["x" * 1000, None, 3], "b" * 9: ""}) == 256 + 65 + of_list + 73 + 64
    )
