"""Where a sampler fails, the next one answers."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, ClassVar

import dimod
import pytest

from infrastructure.core.errors import SamplerError
from infrastructure.features.quantum.samplers import fallback
from infrastructure.features.quantum.samplers.fallback import FallbackSampler
from tests.faults.drive_model import Clock

QUESTION = dimod.BinaryQuadraticModel({"a": 1.0, "b": -1.0}, {"ab": 0.5}, "BINARY")
SECRET = "DEV-" + "0123456789abcdef01234567"


class Remote(dimod.Sampler):
    """A solver that is away for the questions in `away`; it fails when its answer is looked at."""

    properties: ClassVar[dict[str, Any]] = {"qubits": 2}
    parameters: ClassVar[dict[str, Any]] = {"num_reads": []}

    def __init__(self, away: set[int]) -> None:
        self.away, self.num_calls = away, 0

    def sample(self, bqm: dimod.BinaryQuadraticModel, num_reads: int = 1) -> dimod.SampleSet:
        number, self.num_calls = self.num_calls, self.num_calls + 1

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
    assert remote.num_calls == 4


def test_when_all_fail_each_gives_the_reason_without_its_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sampler = FallbackSampler({"first": Remote({0}), "second": Remote({0})})
    with pytest.raises(SamplerError, match=r"first: ConnectionError.*second: ConnectionError") as e:
        sampler.sample(QUESTION)
    assert SECRET not in str(e.value) + caplog.text
    assert sampler.answered_by == ""


def test_a_keyword_that_nobody_knows_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"quantum\.parameter_unknown_to_samplers.*parameters=num_raeds"
    ):
        chain(set())[0].sample(QUESTION, num_raeds=3)


def test_a_chain_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match=r"quantum\.empty_sampler_chain"):
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
    assert "quantum.empty_answer" in both.failures[0]
    with pytest.raises(SamplerError, match=r"quantum\.no_sampler_answered.*quantum\.empty_answer"):
        FallbackSampler({"silent": Silent()}).sample(QUESTION)


class Timed(dimod.Sampler):
    """Notes what it is given; takes its time, and answers or fails."""

    properties: ClassVar[dict[str, Any]] = {}
    parameters: ClassVar[dict[str, Any]] = {"time_limit": [], "num_reads": [], "flavour": []}

    def __init__(self, clock: Clock, seconds: float, fails: bool = True) -> None:
        self.clock, self.seconds, self.fails = clock, seconds, fails
        self.given: list[dict[str, Any]] = []

    def sample(self, bqm: dimod.BinaryQuadraticModel, **given: Any) -> dimod.SampleSet:
        self.given.append(given)
        self.clock.now += self.seconds
        if self.fails:
            raise ConnectionError("offline")
        return dimod.ExactSolver().sample(bqm)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(1000.0)
    monkeypatch.setattr(fallback, "time", SimpleNamespace(monotonic=clock))
    return clock


def test_each_one_may_use_an_equal_share_of_the_time_that_is_left(clock: Clock) -> None:
    chain = [Timed(clock, 2.0), Timed(clock, 10.0), Timed(clock, 0.0, fails=False)]
    sampler = FallbackSampler({str(number): one for number, one in enumerate(chain)})
    sampler.sample(QUESTION, time_limit=30.0)
    assert [one.given for one in chain] == [
        [{"time_limit": 10.0}],
        [{"time_limit": 14.0}],
        [{"time_limit": 18.0}],
    ]
    assert sampler.answered_by == "2"


def test_where_all_the_time_is_used_none_is_left_and_without_a_limit_none_is_given(
    clock: Clock,
) -> None:
    late, last = Timed(clock, 9.0), Timed(clock, 0.0, fails=False)
    sampler = FallbackSampler({"late": late, "last": last})
    sampler.sample(QUESTION, time_limit=5.0)
    sampler.sample(QUESTION, num_reads=3)
    assert late.given == [{"time_limit": 2.5}, {"num_reads": 3}]
    assert last.given == [{"time_limit": 0.0}, {"num_reads": 3}]


def test_a_time_limit_is_no_unknown_keyword_and_goes_to_those_that_know_it() -> None:
    sampler, _ = chain({0})
    assert sampler.sample(QUESTION, time_limit=5.0).first.energy == -1.0


def test_before_the_first_question_nobody_has_answered_or_failed() -> None:
    sampler, _ = chain(set())
    assert (sampler.answered_by, sampler.failures) == ("", [])


def test_all_unknown_keywords_are_named_in_their_order() -> None:
    with pytest.raises(ValueError, match=r"parameter_unknown_to_samplers.*parameters=a, b, c"):
        chain(set())[0].sample(QUESTION, c=1, a=2, b=3)


def test_of_a_keyword_that_several_know_the_first_one_describes_it(clock: Clock) -> None:
    first, second = Remote(set()), Timed(clock, 0.0)
    first.parameters = {"num_reads": ["properties"]}  # type: ignore[misc]
    sampler = FallbackSampler({"first": first, "second": second})
    assert sampler.parameters == {"time_limit": [], "num_reads": ["properties"], "flavour": []}
