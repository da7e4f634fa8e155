"""Whatever moves are made, field and energy are those of the assignment."""

import numpy as np
import pytest

from infrastructure.quantum.samplers import dense_moves
from infrastructure.quantum.samplers.dense_moves import DenseState, SwapState, with_ones
from infrastructure.quantum.samplers.dense_problem import Bits, DenseProblem
from tests.quantum.samplers.questions import random_model

N = 300


@pytest.fixture(scope="module")
def problem() -> DenseProblem:
    return DenseProblem.of(random_model(N, 0))


def some_bits(num_ones: int) -> Bits:
    bits = np.zeros(N, np.int8)
    bits[np.random.default_rng(1).permutation(N)[:num_ones]] = 1
    return bits


def assert_consistent(state: DenseState, problem: DenseProblem) -> None:
    anew = DenseState.of(problem, state.bits)
    assert state.energy == pytest.approx(anew.energy, abs=1e-2)
    np.testing.assert_allclose(state.field, anew.field, atol=1e-3)


@pytest.mark.parametrize("kind", [DenseState, SwapState])
def test_sweeps_keep_the_books(problem: DenseProblem, kind: type[DenseState]) -> None:
    state, random = kind.of(problem, some_bits(100)), np.random.default_rng(2)
    state.start_randomly(random)
    for temperature in (20.0, 5.0, 1.0):
        assert state.sweep(temperature, random) > 0
    assert_consistent(state, problem)
    if kind is SwapState:
        assert state.bits.sum() == 100
        state.descend(random)
        assert state.bits.sum() == 100


def test_a_hot_sweep_accepts_as_metropolis_does(problem: DenseProblem) -> None:
    """From the best of a field of independent variables, exp(-rise / T) of them flip."""
    free = np.zeros((N, N), np.float32)
    state = DenseState(free, np.full(N, 2.0, np.float32), np.ones(N, np.float32), 0.0)
    random = np.random.default_rng(3)
    shares = [state.copy().sweep(2.0, random) / N for _ in range(200)]
    assert np.mean(shares) == pytest.approx(np.exp(-1), abs=0.01)


def test_descending_ends_where_no_flip_gains(problem: DenseProblem) -> None:
    state, random = DenseState.of(problem, some_bits(150)), np.random.default_rng(4)
    state.descend(random)
    assert (state.sign * state.field > -1e-3).all()


def test_descending_by_swaps_ends_where_the_best_swap_gains_nothing(problem: DenseProblem) -> None:
    state, random = SwapState.of(problem, some_bits(40)), np.random.default_rng(4)
    before = state.energy
    state.descend(random)
    ones, zeros = np.flatnonzero(state.bits), np.flatnonzero(1 - state.bits)
    leaving = ones[state.field[ones].argmax()]
    gains = state.field[leaving] - state.field[zeros] + state.matrix[leaving, zeros]
    assert gains.max() < 1e-3
    assert state.energy < before


def test_a_part_is_the_whole_with_the_rest_held(problem: DenseProblem) -> None:
    state, random = DenseState.of(problem, some_bits(150)), np.random.default_rng(5)
    indices = np.sort(random.permutation(N)[:40])
    part = state.restricted(indices)
    part.sweep(3.0, random)
    taken = state.copy()
    taken.take(indices, part)
    assert taken.energy == pytest.approx(part.energy, abs=1e-2)
    outside = np.setdiff1d(np.arange(N), indices)
    assert (taken.bits[outside] == state.bits[outside]).all()
    assert_consistent(taken, problem)


@pytest.mark.parametrize("wanted", [0, 1, 120, N])
def test_a_count_is_reached_from_anywhere(problem: DenseProblem, wanted: int) -> None:
    state = with_ones(problem, some_bits(100), wanted)
    assert state.bits.sum() == wanted
    state.descend(np.random.default_rng(6))
    assert state.bits.sum() == wanted


def test_rounding_is_taken_out_after_many_flips(
    problem: DenseProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_moves, "REFRESH_AFTER_FLIPS", 10)
    state = DenseState.of(problem, some_bits(10))
    state.num_flips = 11
    state.field += 0.5
    state.energy += 7
    state.refresh(problem)
    assert_consistent(state, problem)
    assert state.num_flips == 0
