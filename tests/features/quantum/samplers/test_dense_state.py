"""Whatever moves are made, field and energy are those of the assignment."""

import dimod
import numpy as np
import pytest

from infrastructure.features.quantum.samplers import dense_state as dense_moves
from infrastructure.features.quantum.samplers.dense_problem import Bits, DenseProblem
from infrastructure.features.quantum.samplers.dense_state import (
    DenseState,
    FlipState,
    SwapState,
    with_ones,
)
from tests.features.quantum.samplers.questions import random_model

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


def test_sweeps_keep_the_books(problem: DenseProblem) -> None:
    state, random = FlipState.of(problem, some_bits(100)), np.random.default_rng(2)
    state.start_randomly(random)
    for temperature in (20.0, 5.0, 1.0):
        assert state.sweep(temperature, random) > 0
    assert_consistent(state, problem)


@pytest.mark.parametrize(("num_ones", "moved"), [(100, 20), (N - 3, 3), (N, 0), (0, 0)])
def test_a_kick_moves_what_it_is_to_and_keeps_the_books(
    problem: DenseProblem, num_ones: int, moved: int
) -> None:
    state = SwapState.of(problem, some_bits(num_ones))
    before = state.bits
    state.kick(20, np.random.default_rng(2))
    assert state.bits.sum() == num_ones
    assert np.count_nonzero(state.bits != before) == 2 * moved
    assert_consistent(state, problem)


def test_a_hot_sweep_accepts_as_metropolis_does(problem: DenseProblem) -> None:
    """From the best of a field of independent variables, exp(-rise / T) of them flip."""
    free = np.zeros((N, N), np.float32)
    state = FlipState(free, np.full(N, 2.0, np.float32), np.ones(N, np.float32), 0.0)
    random = np.random.default_rng(3)
    shares = [state.copy().sweep(2.0, random) / N for _ in range(200)]
    assert np.mean(shares) == pytest.approx(np.exp(-1), abs=0.01)


def test_descending_ends_where_no_flip_gains(problem: DenseProblem) -> None:
    state, random = FlipState.of(problem, some_bits(150)), np.random.default_rng(4)
    state.descend(random)
    assert (state.sign * state.field > -1e-3).all()


@pytest.mark.parametrize("pairs_at_once", [7, 10**6])
def test_exchanging_ends_where_none_of_all_exchanges_gains(
    problem: DenseProblem, monkeypatch: pytest.MonkeyPatch, pairs_at_once: int
) -> None:
    monkeypatch.setattr(dense_moves, "EXCHANGES_AT_ONCE", pairs_at_once)
    state = SwapState.of(problem, some_bits(40))
    before = state.energy
    state.descend()
    ones, zeros = np.flatnonzero(state.bits), np.flatnonzero(1 - state.bits)
    between = state.matrix[np.ix_(ones, zeros)]
    assert (state.field[zeros] - state.field[ones][:, None] - between).min() > -1e-3
    assert state.energy < before
    assert len(ones) == 40
    assert_consistent(state, problem)


def test_exchanging_ends_when_it_is_stopped(problem: DenseProblem) -> None:
    state = SwapState.of(problem, some_bits(40))
    before = state.bits
    state.descend(lambda: True)
    assert (state.bits == before).all()


def test_a_part_is_the_whole_with_the_rest_held(problem: DenseProblem) -> None:
    state, random = FlipState.of(problem, some_bits(150)), np.random.default_rng(5)
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
    state.descend()
    assert state.bits.sum() == wanted


def test_rounding_is_taken_out_after_many_flips(problem: DenseProblem) -> None:
    state = FlipState.of(problem, some_bits(10))
    state.num_flips = 11
    state.field += 0.5
    state.energy += 7
    state.refresh(problem)
    assert state.num_flips == 11  # too few to matter
    state.refresh(problem, after_flips=10)
    assert_consistent(state, problem)
    assert state.num_flips == 0


def test_a_variable_that_another_ones_fall_keeps_from_falling_has_its_turn() -> None:
    """Of three spins that cannot all differ, the first in order would always fall first."""
    couplings = {(0, 1): 1.0, (0, 2): 1.0, (1, 2): 1.0}
    bqm = dimod.BinaryQuadraticModel({0: -0.003, 1: -0.005, 2: -0.5}, couplings, "SPIN")
    lowest = dimod.ExactSolver().sample(bqm).first
    problem = DenseProblem.of(bqm)
    random = np.random.default_rng(0)
    found = set()
    for _ in range(30):
        state = FlipState.of(problem, np.zeros(3, np.int8))
        state.start_randomly(random)
        for _ in range(20):
            state.sweep(0.1, random)
        state.descend(random)
        found.add(round(state.energy, 4))
    assert min(found) == round(lowest.energy, 4)
