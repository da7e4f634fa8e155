"""A question is answered whatever the samplers do, in time, and the answer says how."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import dimod
import numpy as np
import pytest

from infrastructure.core.errors import SamplerError
from infrastructure.features.quantum.config import QuantumConfig
from infrastructure.features.quantum.problems.problem import QuantumProblem, Sample, Training
from infrastructure.features.quantum.samplers.fallback import FallbackChain
from infrastructure.features.quantum.solving.quantum_step import (
    close_chain,
    create_chain,
    quantum_solve,
)
from tests.features.quantum.samplers.questions import least_energy, random_model, waits_cut_short

MISBEHAVING = "tests.features.quantum.samplers.misbehaving"


class Chosen(QuantumProblem):
    """Which variables of a model are one."""

    name: ClassVar[str] = "chosen"

    def __init__(self, model: Any, plain: Mapping[str, Sample] | None = None) -> None:
        self.model, self.plain = model, dict(plain or {})
        self.formulating_seconds = 0.0

    def formulate(self) -> Any:
        time.sleep(self.formulating_seconds)
        return self.model

    def decode(self, sample: Sample) -> Any:
        return sorted(str(label) for label, value in sample.items() if value > 0)

    def apply(self, decision: Any, training: Training) -> None:
        training.train_only(decision)

    def alternatives(self) -> dict[str, Sample]:
        return self.plain


def plain_answers(bqm: dimod.BinaryQuadraticModel) -> dict[str, Sample]:
    low = min(bqm.vartype.value)
    return {"none": dict.fromkeys(bqm.variables, low), "all": dict.fromkeys(bqm.variables, 1)}


def resources(solver: str = "auto", **given: Any) -> QuantumConfig:
    return QuantumConfig(solver=solver, **{"timeout": 60, **given})


@pytest.fixture(scope="module")
def bqm() -> dimod.BinaryQuadraticModel:
    return random_model(10, 0)


def test_the_default_answers_with_the_optimum(bqm: dimod.BinaryQuadraticModel) -> None:
    problem = Chosen(bqm, plain_answers(bqm))
    solution = quantum_solve(problem, seed=1)
    assert solution.energy == pytest.approx(least_energy(bqm))
    assert solution.energy == pytest.approx(bqm.energy(solution.sample))
    assert solution.decision == problem.decode(solution.sample)
    assert solution.answered_by == "auto"
    assert not solution.is_fallback
    assert solution.num_variables == 10
    assert solution.failures == []
    assert solution.alternatives["all"] == pytest.approx(bqm.energy(plain_answers(bqm)["all"]))
    assert solution.info["sampler"] == "exact"
    assert not solution.info["bound_hit"]
    assert 0 <= solution.solver_seconds <= solution.seconds


def test_the_same_seed_gives_the_same_answer() -> None:
    problem = Chosen(random_model(60, 2))
    answers = [quantum_solve(problem, resources("dense_annealer"), seed=5) for _ in range(2)]
    assert answers[0].sample == answers[1].sample
    assert not answers[0].info["bound_hit"]


HANGING = (f"{MISBEHAVING}:hang", "quantum.sampler_timed_out")
RAISING = (f"{MISBEHAVING}:fail", "solver offline")
EMPTY = (f"{MISBEHAVING}:give_nothing", "quantum.sampler_returned_nothing")
GARBAGE = (f"{MISBEHAVING}:give_text", "quantum.not_a_sample_set")


@pytest.mark.parametrize(("solver", "reason"), [HANGING, RAISING, EMPTY, GARBAGE])
def test_a_sampler_that_misbehaves_costs_no_more_than_the_timeout(
    solver: str,
    reason: str,
    bqm: dimod.BinaryQuadraticModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who answers at all is given time to start on a busy machine; who hangs does so for ten
    minutes."""
    limits = waits_cut_short(monkeypatch) if solver == HANGING[0] else [60.0]
    began = time.monotonic()
    solution = quantum_solve(Chosen(bqm, plain_answers(bqm)), resources(solver))
    assert time.monotonic() - began < 60.5
    assert 0 < limits[0] <= 60
    assert solution.is_fallback
    assert solution.answered_by == "none"
    assert solution.energy == pytest.approx(solution.alternatives["none"])
    assert reason in solution.failures[0]
    assert solution.info["bound_hit"]


def test_a_sampler_that_hangs_leaves_the_next_one_its_time(
    bqm: dimod.BinaryQuadraticModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = waits_cut_short(monkeypatch)
    hanging = resources(HANGING[0], fallback=["exact"])
    solution = quantum_solve(Chosen(bqm, plain_answers(bqm)), hanging)
    assert 0 < limits[0] <= 30
    assert solution.answered_by == "exact"
    assert solution.energy == pytest.approx(least_energy(bqm))
    assert not solution.is_fallback
    assert "quantum.sampler_timed_out" in solution.failures[0]
    assert solution.info["bound_hit"]


def test_without_an_alternative_nobody_answers(bqm: dimod.BinaryQuadraticModel) -> None:
    with pytest.raises(SamplerError, match="solver offline"):
        quantum_solve(Chosen(bqm), resources(RAISING[0]))


def test_the_deadline_begins_with_formulating(bqm: dimod.BinaryQuadraticModel) -> None:
    problem = Chosen(bqm, plain_answers(bqm))
    problem.formulating_seconds = 0.3
    solution = quantum_solve(problem, resources(timeout=0.2))
    assert solution.is_fallback
    assert "quantum.no_time_left_to_solve(seconds=0.2)" in solution.failures[0]
    assert solution.info["bound_hit"]
    assert solution.seconds > 0.3


class Bad(dimod.Sampler):
    """Answers with the worst."""

    parameters: ClassVar[dict[str, Any]] = {}
    properties: ClassVar[dict[str, Any]] = {}

    def sample(self, bqm: dimod.BinaryQuadraticModel, **unknown: Any) -> dimod.SampleSet:
        found = dimod.ExactSolver().sample(bqm)
        worst = found.record.sample[found.record.energy.argmax()]
        return dimod.SampleSet.from_samples_bqm((worst, found.variables), bqm)


def test_a_better_baseline_is_taken_and_flagged(bqm: dimod.BinaryQuadraticModel) -> None:
    chain = FallbackChain({"bad": Bad()})
    again = quantum_solve(Chosen(bqm), chain=chain)
    assert (again.answered_by, again.remarks) == ("bad", [])
    solution = quantum_solve(Chosen(bqm, plain_answers(bqm)), chain=chain)
    assert solution.is_fallback
    assert solution.energy == min(solution.alternatives.values())
    assert solution.failures == []  # nobody has failed
    (remark,) = solution.remarks
    assert remark.startswith("quantum.baseline_beats_sampler(")
    assert f"baseline={solution.answered_by}, sampler=bad, energy={again.energy}" in remark


def test_a_problem_that_is_too_large_is_solved_in_part() -> None:
    model = random_model(30, 4)
    solution = quantum_solve(Chosen(model), resources(max_qubits=12))
    assert solution.info["left_out"] == 18
    order = sorted(model.variables, key=lambda label: model.linear[label])
    assert all(solution.sample[label] == 0 for label in order[12:])
    part = model.copy()
    part.fix_variables(dict.fromkeys(order[12:], 0))
    assert solution.energy == pytest.approx(least_energy(part))
    assert solution.num_variables == 30


def test_as_many_variables_are_sampled_as_any_of_the_samplers_takes() -> None:
    model = random_model(30, 4)
    alone = quantum_solve(Chosen(model), resources("exact"))
    assert (alone.answered_by, alone.info["left_out"]) == ("exact", 10)
    both = quantum_solve(Chosen(model), resources("exact", fallback=["dense_annealer"]))
    assert (both.answered_by, both.info.get("left_out")) == ("dense_annealer", None)


def test_a_spin_problem_that_is_too_large_is_refused_with_the_reason() -> None:
    model = random_model(30, 4, "SPIN")
    solution = quantum_solve(Chosen(model, plain_answers(model)), resources(max_qubits=12))
    assert solution.is_fallback
    assert "quantum.too_many_variables(count=30, limit=12)" in solution.failures[0]


class Counted(Chosen):
    """Of which a number is to be chosen, and the model does not say so."""

    def __init__(self, model: dimod.BinaryQuadraticModel, num_chosen: int) -> None:
        self.num_chosen = num_chosen
        first = list(model.variables)[:num_chosen]
        super().__init__(model, {"first": {v: int(v in first) for v in model.variables}})


@pytest.mark.parametrize("solver", ["auto", "dense_annealer"])
def test_the_number_that_a_problem_requires_is_kept(
    solver: str, bqm: dimod.BinaryQuadraticModel
) -> None:
    solution = quantum_solve(Counted(bqm, 7), resources(solver))
    assert sum(solution.sample.values()) == 7
    assert solution.energy == pytest.approx(least_energy(bqm, 7))


def test_where_more_are_to_be_chosen_than_may_be_sampled_nothing_is_sampled(
    bqm: dimod.BinaryQuadraticModel,
) -> None:
    solution = quantum_solve(Counted(bqm, 7), resources(max_qubits=6))
    assert "quantum.nothing_left_to_decide(num_chosen=7, count=10" in solution.failures[0]
    assert solution.answered_by == "first"


class Mended(Chosen):
    """A model that does not say its problem's rule: "a" is never chosen."""

    def repair(self, sample: Sample) -> Sample:
        return {**sample, "a": 0}


def test_the_energy_is_that_of_the_answer_that_keeps_the_rules() -> None:
    """Not that of what the sampler gave, which looks better than any answer is."""
    model = dimod.BinaryQuadraticModel({"a": -4.0, "b": -1.0}, {}, "BINARY")
    solution = quantum_solve(Mended(model), chain=FallbackChain({"exact": dimod.ExactSolver()}))
    assert (solution.sample, solution.energy) == ({"a": 0, "b": 1}, -1.0)


@pytest.fixture
def chain() -> Iterator[FallbackChain]:
    kept = create_chain(resources("simulated_annealing", fallback=["exact"]))
    yield kept
    close_chain(kept)


def test_a_kept_chain_keeps_its_process(
    chain: FallbackChain, bqm: dimod.BinaryQuadraticModel
) -> None:
    for number in range(2):
        solution = quantum_solve(Chosen(bqm), resources(), chain=chain, seed=number)
        assert solution.answered_by == "simulated_annealing"
    process = chain.samplers["simulated_annealing"]._child.process  # type: ignore[attr-defined]
    close_chain(chain)
    assert process.poll() is not None


def test_unknown_samplers_are_refused_before_anything_is_formulated() -> None:
    with pytest.raises(ValueError, match=r"core\.did_you_mean\(meant=exact\)"):
        quantum_solve(Chosen(None), resources("exakt"))


def test_numbers_of_numpy_in_the_info_of_a_sampler_are_no_obstacle(
    bqm: dimod.BinaryQuadraticModel,
) -> None:
    class Telling(dimod.ExactSolver):
        def sample(self, bqm: dimod.BinaryQuadraticModel, **unknown: Any) -> dimod.SampleSet:
            found = super().sample(bqm)
            found.info.update(array=np.ones(3), number=2, nan=float("nan"))
            return found

    solution = quantum_solve(Chosen(bqm), chain=FallbackChain({"telling": Telling()}))
    assert solution.info["number"] == 2
    assert "array" not in solution.info
    json.dumps(solution.info, allow_nan=False)


class TimeLimited(dimod.ExactSolver):
    """Keeps the limits that it is given, and does what `act` does."""

    def __init__(self, act: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.parameters = {"time_limit": []}
        self.act = act
        self.limits: list[float] = []

    def sample(self, bqm: dimod.BinaryQuadraticModel, **given: Any) -> dimod.SampleSet:
        self.limits.append(given["time_limit"])
        self.act()
        return super().sample(bqm)


def test_a_sampler_gets_the_time_that_formulating_has_left(
    bqm: dimod.BinaryQuadraticModel,
) -> None:
    sampler, problem = TimeLimited(), Chosen(bqm)
    problem.formulating_seconds = 0.3
    quantum_solve(problem, resources(timeout=60), chain=FallbackChain({"limited": sampler}))
    (limit,) = sampler.limits
    assert 1 < limit <= 59.7


def test_a_sampler_gets_the_time_that_the_one_before_it_has_left(
    bqm: dimod.BinaryQuadraticModel,
) -> None:
    def fail() -> None:
        time.sleep(0.3)
        raise RuntimeError("offline")

    first, second = TimeLimited(fail), TimeLimited()
    chain = FallbackChain({"first": first, "second": second})
    solution = quantum_solve(Chosen(bqm), resources(timeout=60), chain=chain)
    assert solution.answered_by == "second"
    assert 1 < first.limits[0] <= 30
    assert 30 < second.limits[0] <= 59.7
