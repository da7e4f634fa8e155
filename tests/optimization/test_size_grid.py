"""Few sizes, little padding, and the same ones again."""

import pytest

from infrastructure.optimization.size_grid import LEAST_STEP, SizeGrid

GRIDS = [(SizeGrid.EIGHTHS, 8), (SizeGrid.SIXTEENTHS, 16)]


def test_exact_sizes_stay() -> None:
    assert [SizeGrid.EXACT.up(size) for size in range(300)] == list(range(300))


@pytest.mark.parametrize(
    ("grid", "sizes"),
    [
        (SizeGrid.EIGHTHS, [0, 8, 8, 16, 128, 144, 288, 1024, 1152]),
        (SizeGrid.SIXTEENTHS, [0, 8, 8, 16, 128, 136, 272, 1024, 1088]),
    ],
)
def test_sizes_of_the_grid(grid: SizeGrid, sizes: list[int]) -> None:
    assert [grid.up(size) for size in (0, 1, 8, 9, 127, 129, 257, 1009, 1025)] == sizes
    assert (grid.segment_step, SizeGrid.EXACT.segment_step) == (16, 1)


@pytest.mark.parametrize(("grid", "parts"), GRIDS)
def test_sizes_are_rounded_up_and_stay_then(grid: SizeGrid, parts: int) -> None:
    rounded = [grid.up(size) for size in range(5000)]
    assert all(size <= up for size, up in enumerate(rounded))
    assert rounded == sorted(rounded)
    assert [grid.up(up) for up in rounded] == rounded
    assert all(up - size < max(LEAST_STEP, size / parts) for size, up in enumerate(rounded))


def test_rows_of_a_batch_have_fewer_sizes_on_a_cpu() -> None:
    assert [SizeGrid.EIGHTHS.rows_up(count) for count in (0, 1, 32, 33, 200, 290, 600)] == [
        *(0, 32, 32, 64, 224, 320, 640),
    ]
    for grid in (SizeGrid.EXACT, SizeGrid.SIXTEENTHS):
        assert [grid.rows_up(count) for count in range(600)] == [grid.up(n) for n in range(600)]


@pytest.mark.parametrize(("grid", "parts"), GRIDS)
@pytest.mark.parametrize("size", [64, 770, 4000, 100_000])
def test_few_sizes_from_a_length_to_twice_it(grid: SizeGrid, parts: int, size: int) -> None:
    assert len({grid.up(one) for one in range(size, 2 * size)}) <= parts + 1


@pytest.mark.parametrize(("grid", "parts"), GRIDS)
def test_what_is_added_is_little(grid: SizeGrid, parts: int) -> None:
    share = sum(grid.up(size) / size - 1 for size in range(512, 1024)) / 512
    assert 0.16 < share * parts / 2 < 0.48
