"""Where a sampler fails, the next one answers."""

from concurrent.futures import Future
from typing import Any, ClassVar

import dimod
import pytest

from infrastructure.core.errors import SamplerError
from infrastructure.quantum.samplers.fallback import FallbackSampler

QUESTION = dimod.BinaryQuadraticModel({"a": 1.0, "b": -1.0}, {"ab": 0.5}, "BINARY")
SECRET = "DEV-" + "0123456789abcdef01234567"


class Remote(dimod.Sampler):
    """A solver that is away for the questions in `away`; it fails when its answer is looked at."""

    properties: ClassVar[dict[str, Any]] = {"qubits": 2}
    parameters: ClassVar[dict[str, Any]] = {"num_reads": []}

    def __init__(self, away: set[int]) -> None:
        self.away, self.num_asked = away, 0

    def sample(self, bqm: dimod.BinaryQuadraticModel, num_reads: int = 1) -> dimod.SampleSet:
        number, self.num_asked = self.num_asked, self.num_asked + 1

        def answer(job: Future[None]) -> dimod.SampleSet:
            if number in self.away:
                raise ConnectionError(f"solver offline for token={SECRET}")
            return dimod.ExactSolver().sample(bqm)

        return dimod.SampleSet.from_future(Future(), answer)


def chain(away: set[int]) -> tuple[FallbackSampler, Remote]:
    remote = Remote(away)
    return FallbackSampler({"remote": remote, "exact": dimod.ExactSolver()}), remote


def test_it_is_a_sampler_as_dimod_wants_it() -> None:
    dimod.testing.assert_sampler_api(chain(set())[0])


@pytest.mark.parametrize("kind", ["sample", "sample_ising", "sample_qubo"])
def test_all_kinds_of_questions_are_answered(kind: str) -> None:
    sampler, _ = chain({0})
    questions = {
        "sample": (QUESTION,),
        "sample_ising": ({"a": 1.0}, {("a", "b"): 1.0}),
        "sample_qubo": ({("a", "a"): 1.0, ("a", "b"): -2.0},),
    }
    found = getattr(sampler, kind)(*questions[kind])
    exact = getattr(dimod.ExactSolver(), kind)(*questions[kind])
    assert found.first == exact.first
    assert sampler.answered_by == "exact"


def test_the_next_one_answers_where_one_fails() -> None:
    sampler, remote = chain({1, 2})
    answered_by = []
    for _ in range(4):
        found = sampler.sample(QUESTION, num_reads=3)
        assert found.first.sample == dimod.ExactSolver().sample(QUESTION).first.sample
        answered_by.append(sampler.answered_by)
    assert answered_by == ["remote", "exact", "exact", "remote"]
    assert remote.num_asked == 4


def test_when_all_fail_each_says_why_without_its_secret(caplog: pytest.LogCaptureFixture) -> None:
    sampler = FallbackSampler({"first": Remote({0}), "second": Remote({0})})
    with pytest.raises(SamplerError, match=r"first: ConnectionError.*second: ConnectionError") as e:
        sampler.sample(QUESTION)
    assert SECRET not in str(e.value) + caplog.text
    assert sampler.answered_by == ""


def test_a_keyword_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="knows num_raeds"):
        chain(set())[0].sample(QUESTION, num_raeds=3)


def test_a_chain_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        FallbackSampler({})


class Silent(dimod.Sampler):
    """Answers without an assignment."""

    properties: ClassVar[dict[str, Any]] = {}
    parameters: ClassVar[dict[str, Any]] = {}

    def sample(self, bqm: dimod.BinaryQuadraticModel) -> dimod.SampleSet:
        return dimod.SampleSet.from_samples_bqm([], bqm)


def test_an_empty_answer_is_none() -> None:
    both = FallbackSampler({"silent": Silent(), "exact": dimod.ExactSolver()})
    assert both.sample(QUESTION).first.energy == -1.0
    assert "silent: " in both.failures[0]
    assert "an empty answer" in both.failures[0]
    with pytest.raises(SamplerError, match="an empty answer"):
        FallbackSampler({"silent": Silent()}).sample(QUESTION)
