"""Few sizes, little padding, and the same ones again."""

import pytest

from infrastructure.optimization.size_grid import LEAST_STEP, SizeGrid

GRID = SizeGrid.SIXTEENTHS


def test_exact_sizes_stay() -> None:
    assert [SizeGrid.EXACT.up(size) for size in range(300)] == list(range(300))


def test_sizes_are_rounded_up_and_stay_then() -> None:
    rounded = [GRID.up(size) for size in range(5000)]
    assert all(size <= up for size, up in enumerate(rounded))
    assert rounded == sorted(rounded)
    assert [GRID.up(up) for up in rounded] == rounded


@pytest.mark.parametrize("size", [64, 770, 4000, 100_000])
def test_at_most_sixteen_sizes_from_a_length_to_twice_it(size: int) -> None:
    assert len({GRID.up(one) for one in range(size, 2 * size)}) <= 17


def test_what_is_added_is_little() -> None:
    assert all(GRID.up(size) - size < max(LEAST_STEP, size / 16) for size in range(1, 10_000))
    share = sum(GRID.up(size) / size - 1 for size in range(512, 1024)) / 512
    assert 0.01 < share < 0.03
