"""The library's simulated annealing, read by read: optima, repetition, time."""

import itertools
from types import SimpleNamespace
from typing import Any

import dimod
import numpy as np
import pytest

from benchmarks.quantum_quality import small_problem
from infrastructure.features.quantum.samplers.simulated_annealing import (
    SimulatedAnnealing,
    beta_range_of,
)
from tests.features.quantum.samplers.questions import least_energy, random_model


@pytest.mark.parametrize("vartype", ["BINARY", "SPIN"])
def test_small_problems_are_solved(vartype: str) -> None:
    sampler = SimulatedAnnealing()
    dimod.testing.assert_sampler_api(sampler)
    for seed in range(3):
        bqm = random_model(10, seed, vartype)
        found = sampler.sample(bqm, seed=seed)
        assert found.first.energy == pytest.approx(least_energy(bqm))
        dimod.testing.assert_response_energies(found, bqm)


def test_a_seed_repeats_the_answer() -> None:
    bqm = random_model(150, 0)
    one, two = (SimulatedAnnealing().sample(bqm, seed=4, num_reads=2) for _ in range(2))
    np.testing.assert_array_equal(one.record.sample, two.record.sample)


def test_few_variables_have_more_reads() -> None:
    bqm = small_problem(91)
    few = SimulatedAnnealing().sample(bqm, seed=91, num_reads=10)
    found = SimulatedAnnealing().sample(bqm, seed=91)
    assert found.info["num_reads"] > 10
    assert found.first.energy == pytest.approx(least_energy(bqm))
    assert found.first.energy < few.first.energy


def test_reads_go_on_until_the_time_is_up_and_no_longer() -> None:
    ticks, sampler = itertools.count(), SimulatedAnnealing()
    sampler.clock = lambda: next(ticks) / 100  # each look takes 10 ms
    found = sampler.sample(random_model(60, 0), time_limit=1.0, num_reads=10**9)
    assert 30 < next(ticks) < 120  # so many reads would take days
    assert found.info["is_cut_off"]
    assert found.info["num_reads"] > 1


def test_a_read_that_would_overrun_is_not_begun() -> None:
    """Each doubles the sweeps of the one before, so it is expected to take twice as long."""
    now, seconds, sampler = [0.0], iter([0.1, 0.3, 60.0]), SimulatedAnnealing()

    def read(bqm: dimod.BinaryQuadraticModel, **given: Any) -> dimod.SampleSet:
        now[0] += next(seconds)
        return dimod.ExactSolver().sample(bqm).truncate(1)

    sampler.library = SimpleNamespace(sample=read)
    sampler.clock = lambda: now[0]
    found = sampler.sample(random_model(3, 0), time_limit=1.0)
    assert found.info == {"num_reads": 2, "is_cut_off": True}


def test_the_temperatures_begin_above_what_moves_a_spin_and_end_far_below() -> None:
    bqm = random_model(400, 1, "SPIN")
    hot, cold = beta_range_of(bqm)
    assert 1 / hot > 20  # a spin feels about sqrt(400)
    assert 1 / cold < 2
    binary = beta_range_of(bqm.change_vartype("BINARY", inplace=False))
    assert binary == pytest.approx((hot, cold))
    assert beta_range_of(dimod.BinaryQuadraticModel({"a": 0.0}, {}, "SPIN")) == (1.0, 10.0)
