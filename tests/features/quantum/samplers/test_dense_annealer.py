"""The annealer of ours finds optima, repeats itself, and keeps limits, counts and vartypes."""

import tracemalloc
import unittest
from itertools import count
from types import SimpleNamespace
from typing import Any

import dimod
import numpy as np
import pytest

from infrastructure.features.quantum.samplers import dense_problem
from infrastructure.features.quantum.samplers.dense_annealer import DenseAnnealer, default_reads
from infrastructure.features.quantum.samplers.dense_problem import DenseProblem
from infrastructure.features.quantum.samplers.dense_search_base import distinct
from tests.features.quantum.samplers.questions import least_energy, random_model
from tests.slow import slow_but


class OneRead(DenseAnnealer):
    """Take one read: dimod's requirements do not depend on the number, but the time does."""

    def sample(self, bqm: dimod.BinaryQuadraticModel, **given: Any) -> dimod.SampleSet:
        return super().sample(bqm, **{"num_reads": 1, **given})


@dimod.testing.load_sampler_bqm_tests(OneRead)
class TestConformance(unittest.TestCase):
    def test_it_is_a_sampler_as_dimod_wants_it(self) -> None:
        dimod.testing.assert_sampler_api(DenseAnnealer())


@pytest.mark.parametrize("vartype", ["BINARY", "SPIN"])
def test_the_optimum_of_small_problems_is_found(vartype: str) -> None:
    for seed in range(10):
        bqm = random_model(11, seed, vartype)
        found = DenseAnnealer().sample(bqm, num_reads=1, seed=seed)
        assert found.first.energy == pytest.approx(least_energy(bqm))
        dimod.testing.assert_response_energies(found, bqm)


def test_any_number_of_ones_is_kept_and_the_best_such_answer_found() -> None:
    bqm = random_model(11, 3)
    for num_ones in range(12):
        found = DenseAnnealer().sample(bqm, num_reads=1, seed=0, num_ones=num_ones)
        assert (found.record.sample.sum(axis=1) == num_ones).all()
        assert found.first.energy == pytest.approx(least_energy(bqm, num_ones))


def test_a_large_penalty_on_the_count_costs_no_digits() -> None:
    """In float32 alone, coefficients of 1e6 would hide those of 1."""
    bqm = random_model(11, 5)
    found = DenseAnnealer().sample(bqm, num_reads=1, seed=0, num_ones=4)
    penalised = bqm.copy()
    penalised.update(dimod.generators.combinations(list(bqm.variables), 4, strength=1e8))
    again = DenseAnnealer().sample(penalised, num_reads=1, seed=0, num_ones=4)
    assert again.first.sample == found.first.sample


def test_the_same_seed_gives_the_same_answer_and_another_one_another_search() -> None:
    bqm = random_model(60, 1)
    first, again, other = (
        DenseAnnealer().sample(bqm, num_reads=1, seed=seed).info["read_energies"]
        for seed in (7, 7, 8)
    )
    infos = [DenseAnnealer().sample(bqm, num_reads=2, seed=s).info for s in (7, 7, 8)]
    assert first == again
    assert infos[0]["num_steps"] == infos[1]["num_steps"]
    assert (first, infos[0]["num_steps"]) != (other, infos[2]["num_steps"])


@pytest.mark.parametrize("factor", slow_but([2.0**12], [2.0**-12, 2.0**12]))
def test_the_same_problem_in_other_units_is_searched_in_the_same_way(factor: float) -> None:
    bqm = random_model(150, 4)
    scaled = bqm.copy()
    scaled.scale(factor)
    one, other = (DenseAnnealer().sample(b, num_reads=2, seed=3) for b in (bqm, scaled))
    assert other.info["num_steps"] == one.info["num_steps"]
    energies = [energy * factor for energy in one.info["read_energies"]]
    assert other.info["read_energies"] == pytest.approx(energies, rel=1e-6)
    assert other.first.sample == one.first.sample


def test_the_time_limit_holds_by_the_clock_that_it_is_given() -> None:
    ticks = count()
    sampler = DenseAnnealer(clock=lambda: next(ticks) / 100)  # each look takes 10 ms
    bqm = random_model(200, 0)
    found = sampler.sample(bqm, time_limit=2.0, seed=0, num_reads=1000)
    assert found.info["is_cut_off"]
    assert 1.5 < found.info["seconds"] < 2.5
    dimod.testing.assert_response_energies(found, bqm)


def test_no_time_at_all_gives_a_valley_all_the_same() -> None:
    bqm = random_model(50, 4)
    found = DenseAnnealer().sample(bqm, time_limit=0.0, seed=0)
    sample = dict(found.first.sample)
    for variable in bqm.variables:
        flipped = {**sample, variable: 1 - sample[variable]}
        assert bqm.energy(flipped) > found.first.energy - 1e-3


def test_reads_end_where_searches_agree() -> None:
    found = DenseAnnealer().sample(random_model(20, 6), num_reads=1000, seed=0)
    assert found.info["num_reads"] < 20
    assert not found.info["is_cut_off"]


def test_the_work_follows_from_the_size() -> None:
    assert default_reads(10) > default_reads(3000) > default_reads(6000) >= 2
    assert default_reads(10, num_ones=3) == default_reads(6000, num_ones=600)
    assert default_reads(0) == default_reads(1)


def test_a_given_number_of_ones_is_searched_beyond_the_best_exchange() -> None:
    """The plain answer, from which it sets out, is a valley of single exchanges."""
    bqm = random_model(80, 1)
    first = DenseAnnealer().sample(bqm, num_ones=20, time_limit=0.0, seed=0)
    found = DenseAnnealer().sample(bqm, num_ones=20, seed=0)
    again = DenseAnnealer().sample(bqm, num_ones=20, seed=0)
    assert found.first.energy < first.first.energy - 0.1
    assert not found.info["is_cut_off"]
    assert found.first.sample == again.first.sample
    assert found.info["read_energies"] == again.info["read_energies"]
    dimod.testing.assert_response_energies(found, bqm)


def test_a_model_without_interactions_or_coefficients_is_answered() -> None:
    linear = dimod.BinaryQuadraticModel({"a": -1.0, "b": 2.0}, {}, "BINARY")
    assert dict(DenseAnnealer().sample(linear, seed=0).first.sample) == {"a": 1, "b": 0}
    zero = dimod.BinaryQuadraticModel({"a": 0.0, "b": 0.0}, {"ab": 0.0}, "SPIN")
    assert DenseAnnealer().sample(zero, seed=0).first.energy == 0


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"num_ones": 4}, r"quantum\.num_ones_out_of_range\(num_ones=4, count=3\)"),
        ({"num_ones": -1}, r"quantum\.num_ones_out_of_range\(num_ones=-1"),
        ({"num_reads": 0}, r"quantum\.num_reads_too_small\(num_reads=0\)"),
        ({"time_limit": -1}, r"quantum\.negative_time_limit\(seconds=-1\)"),
        ({"time_limit": float("nan")}, r"quantum\.negative_time_limit\(seconds=nan\)"),
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DenseAnnealer().sample(random_model(3, 0), **wrong)


def test_what_fits_no_matrix_is_refused_with_another_way() -> None:
    bqm = dimod.BinaryQuadraticModel(30_000, "BINARY")
    with pytest.raises(ValueError, match=r"quantum\.matrix_too_large\(count=\d+, size=3\.[34]"):
        DenseAnnealer().sample(bqm)


def test_coefficients_that_are_no_numbers_are_refused() -> None:
    bqm = dimod.BinaryQuadraticModel({"a": float("nan")}, {}, "BINARY")
    with pytest.raises(ValueError, match=r"quantum\.coefficient_exceeds_float32"):
        DenseAnnealer().sample(bqm)


@pytest.mark.parametrize("vartype", ["BINARY", "SPIN"])
def test_the_matrix_is_the_model(vartype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_problem, "ROWS_AT_ONCE", 7)  # several tiles
    bqm = random_model(30, 0, vartype, density=0.5)
    problem = DenseProblem.of(bqm)
    bits = np.random.default_rng(1).integers(0, 2, 30).astype(np.int8)
    field = problem.field(bits)
    energy = problem.offset + bits @ (problem.linear + field) / 2
    rows = bits if vartype == "BINARY" else 2 * bits - 1
    assert energy == pytest.approx(float(bqm.energy((rows, list(bqm.variables)))), abs=1e-4)
    assert (problem.matrix == problem.matrix.T).all()
    assert not problem.matrix.diagonal().any()


def test_the_conversion_needs_little_beside_the_matrix() -> None:
    bqm = random_model(700, 0)
    tracemalloc.start()
    DenseProblem.of(bqm)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 700**2 + 40 * bqm.num_interactions


def test_states_that_differ_in_few_variables_are_one() -> None:
    """The one of least energy, if they differ in no more than the given number."""
    signs = {3.0: [1, 1, 1, 1], 1.0: [1, 1, -1, -1], 2.0: [-1, -1, -1, 1], 4.0: [1, 1, 1, -1]}
    states: Any = [SimpleNamespace(energy=e, sign=np.array(sign)) for e, sign in signs.items()]
    assert [state.energy for state in distinct(states, 2)] == [1.0, 2.0]
    assert [state.energy for state in distinct(states, 1)] == [1.0, 2.0, 3.0]
    assert [state.energy for state in distinct(states, 0)] == [1.0, 2.0, 3.0, 4.0]
