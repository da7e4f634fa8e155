"""The library's samplers, read by read: optima, repetition, time."""

import itertools
from typing import Any

import dimod
import numpy as np
import pytest

from benchmarks.quantum_quality import small_problem
from infrastructure.features.quantum.samplers.library_samplers import (
    LibrarySampler,
    PathIntegral,
    SimulatedAnnealing,
    SteepestDescent,
    Tabu,
    TreeDecomposition,
    beta_range_of,
)
from tests.features.quantum.samplers.questions import least_energy, random_model
from tests.slow import slow_but

READING = [SimulatedAnnealing, PathIntegral, SteepestDescent, Tabu]


@pytest.mark.parametrize("make", [*READING, TreeDecomposition])
@pytest.mark.parametrize("vartype", slow_but(["SPIN"], ["BINARY", "SPIN"]))
def test_small_problems_are_solved(make: type[Any], vartype: str) -> None:
    sampler = make()
    dimod.testing.assert_sampler_api(sampler)
    for seed in range(3):
        bqm = random_model(10, seed, vartype)
        given = {"seed": seed} if "seed" in sampler.parameters else {}
        found = sampler.sample(bqm, **given)
        assert found.first.energy == pytest.approx(least_energy(bqm))
        dimod.testing.assert_response_energies(found, bqm)


@pytest.mark.parametrize("make", [SimulatedAnnealing, PathIntegral, SteepestDescent])
def test_a_seed_repeats_the_answer(make: type[LibrarySampler]) -> None:
    bqm = random_model(150, 0)
    one, two = (make().sample(bqm, seed=4, num_reads=2) for _ in range(2))
    np.testing.assert_array_equal(one.record.sample, two.record.sample)


@pytest.mark.parametrize(
    ("make", "number"),
    [(PathIntegral, 125), (PathIntegral, 127), (PathIntegral, 159), (SimulatedAnnealing, 91)],
)
def test_few_variables_have_more_reads(make: type[SimulatedAnnealing], number: int) -> None:
    bqm = small_problem(number)
    few = make().sample(bqm, seed=number, num_reads=10)
    found = make().sample(bqm, seed=number)
    assert found.info["num_reads"] > 10
    assert found.first.energy == pytest.approx(least_energy(bqm))
    assert found.first.energy < few.first.energy


def test_reads_go_on_until_the_time_is_up_and_no_longer() -> None:
    ticks, sampler = itertools.count(), SimulatedAnnealing()
    sampler.clock = lambda: next(ticks) / 100  # each look takes 10 ms
    found = sampler.sample(random_model(300, 0), time_limit=1.0, num_reads=10**9)
    assert 30 < next(ticks) < 120  # so many reads would take days
    assert found.info["is_cut_off"]
    assert found.info["num_reads"] > 1


class Slow(LibrarySampler):
    """Each read takes as long as it says, by a clock of its own."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds, self.now = seconds, 0.0
        self.clock = lambda: self.now

    def read(
        self, bqm: dimod.BinaryQuadraticModel, number: int, seed: int, seconds_left: float
    ) -> dimod.SampleSet:
        self.now += self.seconds[number]
        return dimod.ExactSolver().sample(bqm).truncate(1)


def test_a_read_that_would_overrun_is_not_begun() -> None:
    sampler = Slow([0.1, 0.3, 60.0])
    found = sampler.sample(random_model(3, 0), time_limit=0.7)
    assert found.info == {"num_reads": 2, "is_cut_off": True}


def test_the_temperatures_begin_above_what_moves_a_spin_and_end_far_below() -> None:
    bqm = random_model(400, 1, "SPIN")
    hot, cold = beta_range_of(bqm)
    assert 1 / hot > 20  # a spin feels about sqrt(400)
    assert 1 / cold < 2
    binary = beta_range_of(bqm.change_vartype("BINARY", inplace=False))
    assert binary == pytest.approx((hot, cold))
    assert beta_range_of(dimod.BinaryQuadraticModel({"a": 0.0}, {}, "SPIN")) == (1.0, 10.0)


def test_a_dense_problem_is_no_tree() -> None:
    with pytest.raises(ValueError, match="treewidth"):
        TreeDecomposition().sample(random_model(40, 0))
