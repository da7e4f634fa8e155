"""The solution of a run's optimization problem, by samplers or, if they fail, by a baseline."""

import json
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dimod

from infrastructure.core.errors import MissingPackageError, MissingSecretError, SamplerError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact
from infrastructure.features.quantum.config import QuantumConfig
from infrastructure.features.quantum.problems.problem import QuantumProblem, Sample
from infrastructure.features.quantum.sampler_needs import check_sampler
from infrastructure.features.quantum.samplers.deadline import Deadline
from infrastructure.features.quantum.samplers.fallback import FallbackChain
from infrastructure.features.quantum.samplers.process_sampler import ProcessSampler
from infrastructure.features.quantum.samplers.sampler_factory import close_sampler, create_sampler
from infrastructure.features.quantum.solving.formulated_problem import FormulatedProblem

ROUNDING = 1e-7  # relative to an energy; a smaller difference does not count


@dataclass(frozen=True)
class Solution:
    """The solution of a problem, and how it was found.

    Attributes:
        decision: the decision for the training, as JSON values.
        sample: the value of each variable, 0 or 1 (or a spin); feasible.
        energy: energy of the sample.
        answered_by: name of the sampler, or of the baseline that was used.
        is_fallback: whether a baseline was used, because no sampler answered or the baseline was
            better.
        num_variables: variables of the problem.
        seconds: total wall time, formulation included.
        solver_seconds: the part of `seconds` that the samplers took.
        alternatives: energies of the baselines, by name.
        failures: a sentence for each sampler that did not answer, and for anything else that
            failed.
        remarks: a sentence for each thing worth knowing that is not a failure.
        info: what the sampler reported, such as `num_reads`; `bound_hit`: a time limit affected the
            result, so another attempt may give another
            answer; `left_out`: number of variables fixed at 0 because the problem exceeded the size
            limit.
    """

    decision: Any
    sample: Mapping[Hashable, int]
    energy: float
    answered_by: str
    is_fallback: bool
    num_variables: int
    seconds: float
    solver_seconds: float
    alternatives: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    info: JsonObject = field(default_factory=dict)


def create_chain(config: QuantumConfig) -> FallbackChain:
    """Create the samplers of a configuration, the preferred one first.

    Keep the chain between problems so that its processes stay warm. `close_chain` ends them.

    Raises:
        ValueError: a sampler name is unknown.
        MissingPackageError: the package of a sampler is not installed.
        MissingSecretError: the environment lacks the access data of a sampler's machine.
    """
    samplers: dict[str, dimod.Sampler] = {}
    for key, name in config.samplers():
        try:
            check_sampler(name)
            samplers.setdefault(name, create_sampler(name))
        except (ValueError, MissingPackageError, MissingSecretError) as error:
            raise type(error)(f"quantum.{key}: {error}") from None
    return FallbackChain(samplers)


def close_chain(chain: FallbackChain) -> None:
    """End the processes of a chain; the next problem starts new ones."""
    for sampler in chain.samplers.values():
        close_sampler(sampler)


def quantum_solve(
    problem: QuantumProblem,
    config: QuantumConfig | None = None,
    *,
    seed: int = 0,
    chain: FallbackChain | None = None,
) -> Solution:
    """Formulate a problem, query the samplers in turn and compare the answer with the baselines.

    If `info["bound_hit"]` is False, the solution depends only on problem and seed.

    Args:
        config: the samplers, the largest problem size and the total time limit; None: the problem's
            own configuration, or else the defaults.
        seed: seed for the samplers.
        chain: a chain of `create_chain` that is kept between problems; None: one for this call.

    Raises:
        ValueError: the problem cannot be formulated, or a sampler name is unknown.
        SamplerError: no sampler answered and the problem has no baseline.
    """
    config = config or problem.config or QuantumConfig()
    deadline = Deadline(config.timeout)
    samplers = chain or create_chain(config)
    try:
        for sampler in samplers.samplers.values():
            if isinstance(sampler, ProcessSampler):
                sampler.start()  # while the problem is formulated
        question = FormulatedProblem(problem)
        given: dict[str, Any] = {"seed": seed}
        if question.num_ones is not None:
            given["num_ones"] = question.num_ones
        began = deadline.elapsed_seconds
        answer = _query(question, samplers, deadline, config.largest_problem, given)
        solver_seconds = deadline.elapsed_seconds - began
        taken = _compared(answer, question)
        assert taken.sample is not None
        return Solution(
            decision=problem.decode(taken.sample),
            sample=taken.sample,
            energy=taken.energy,
            answered_by=taken.name,
            is_fallback=taken is not answer,
            num_variables=question.num_variables,
            seconds=deadline.elapsed_seconds,
            solver_seconds=solver_seconds,
            alternatives=question.alternatives,
            failures=taken.failures,
            remarks=taken.remarks,
            info=taken.info,
        )
    finally:
        if chain is None:
            close_chain(samplers)


@dataclass
class _Answer:
    """An answer of the samplers, before it is compared with the baselines."""

    name: str
    sample: Sample | None = None
    energy: float = math.inf
    failures: list[str] = field(default_factory=list)
    info: JsonObject = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def _query(
    question: FormulatedProblem,
    chain: FallbackChain,
    deadline: Deadline,
    max_variables: int,
    given: Mapping[str, object],
) -> _Answer:
    """Query a chain of samplers; return the answer (empty if none) and their failures."""
    try:
        bqm = question.cut_to(max_variables)
        if deadline.is_over:
            text = phrase("quantum.no_time_left_to_solve", seconds=deadline.seconds)
            return _Answer("", failures=[text], info={"bound_hit": True})
        sample_set = chain.sample(bqm, time_limit=deadline.seconds_left, **given)
        sample = question.problem.repair(question.whole(sample_set.first.sample))
    except SamplerError as error:
        return _Answer("", failures=[redact(str(error))], info={"bound_hit": bool(chain.failures)})
    info = _plain(sample_set.info)
    info["bound_hit"] = bool(info.pop("is_cut_off", True) or chain.failures)
    if bqm.num_variables < question.num_variables:
        info["left_out"] = question.num_variables - bqm.num_variables
    return _Answer(
        chain.answered_by, sample, question.energies([sample])[0], list(chain.failures), info
    )


def _compared(answer: _Answer, question: FormulatedProblem) -> _Answer:
    """Return the samplers' answer; if a baseline is better or no sampler answered, return the
    baseline.

    Raises:
        SamplerError: there is neither an answer nor a baseline.
    """
    names, remarks = list(question.alternatives), []
    if answer.sample is None:
        if not names:
            raise SamplerError("; ".join(answer.failures))
        name = names[0]
    else:
        name = min(names, key=question.alternatives.__getitem__, default="")
        least = answer.energy - ROUNDING * max(1.0, abs(answer.energy))
        if not names or question.alternatives[name] >= least:
            return answer
        remarks = [
            phrase(
                "quantum.baseline_beats_sampler",
                baseline=name,
                sampler=answer.name,
                energy=answer.energy,
            )
        ]
    energy = question.alternatives[name]
    return _Answer(name, question.samples[name], energy, answer.failures, answer.info, remarks)


def _plain(info: Mapping[str, object]) -> JsonObject:
    """Return the values in a sampler's info that JSON can represent."""
    kept: JsonObject = {}
    for name, value in info.items():
        try:
            kept[str(name)] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            continue
    return kept
