"""The public problems are made as their author's program makes them."""

import numpy as np
import pytest

from benchmarks.quantum_quality import MODULUS, MULTIPLIER, palubeckis


def plainly(num_variables: int, density: int, seed: int) -> dict[tuple[int, int], int]:
    """Coefficients to maximise, number by number; those off the diagonal once."""
    found, state = {}, seed

    def share() -> float:
        nonlocal state
        state = state * MULTIPLIER % MODULUS
        return state / 2**31

    for i in range(num_variables):
        found[i, i] = -100 + int(201 * share())
        for j in range(i + 1, num_variables):
            if np.float32(100) * np.float32(share()) <= density:
                found[i, j] = -100 + int(201 * share())
    return found


@pytest.mark.parametrize("density", [30, 50, 100])
def test_rows_made_at_once_are_those_made_number_by_number(density: int) -> None:
    bqm, wanted = palubeckis(60, density, 31000), plainly(60, density, 31000)
    assert bqm.num_interactions == len(wanted) - 60
    for (i, j), value in wanted.items():
        assert value == (-bqm.get_linear(i) if i == j else -bqm.get_quadratic(i, j) / 2)


def test_a_number_at_the_edge_of_two_values_has_the_lower_one() -> None:
    """Shares of 2^31 - 1 instead of 2^31 make two of p5000.5's coefficients others."""
    number = 1826963700
    seed = number * pow(MULTIPLIER, -1, MODULUS) % MODULUS
    assert palubeckis(1, 100, seed).get_linear(0) == -70
