import pytest

from infrastructure.core.integers import ceil_div


@pytest.mark.parametrize(
    ("number", "divisor", "pieces"),
    [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (-5, 4, -1), (10**30 + 1, 10**15, 10**15 + 1)],
)
def test_pieces_that_hold_a_number(number: int, divisor: int, pieces: int) -> None:
    assert ceil_div(number, divisor) == pieces
