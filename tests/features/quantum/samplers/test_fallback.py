"""Where a sampler fails, the next one answers."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, ClassVar

import dimod
import pytest

from infrastructure.core.errors import SamplerError
from infrastructure.features.quantum.samplers import fallback
from infrastructure.features.quantum.samplers.fallback import FallbackChain
from tests.faults.drive_model import Clock

QUESTION = dimod.BinaryQuadraticModel({"a": 1.0, "b": -1.0}, {"ab": 0.5}, "BINARY")
SECRET = "DEV-" + "0123456789abcdef01234567"


class Remote(dimod.Sampler):
    """A solver that is away for the questions in `away`; it fails when its answer is looked at."""

    properties: ClassVar[dict[str, Any]] = {}
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


def test_the_next_one_answers_where_one_fails() -> None:
    remote = Remote({1, 2})
    chain = FallbackChain({"remote": remote, "exact": dimod.ExactSolver()})
    answered_by = []
    for _ in range(4):
        found = chain.sample(QUESTION, 60.0, num_reads=3)
        assert found.first.sample == dimod.ExactSolver().sample(QUESTION).first.sample
        answered_by.append(chain.answered_by)
    assert answered_by == ["remote", "exact", "exact", "remote"]
    assert remote.num_calls == 4


def test_when_all_fail_each_gives_the_reason_without_its_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chain = FallbackChain({"first": Remote({0}), "second": Remote({0})})
    with pytest.raises(SamplerError, match=r"first: ConnectionError.*second: ConnectionError") as e:
        chain.sample(QUESTION, 60.0)
    assert SECRET not in str(e.value) + caplog.text
    assert chain.answered_by == ""


class Timed(dimod.Sampler):
    """Notes what it is given; takes its time, and answers, without an assignment, or fails."""

    properties: ClassVar[dict[str, Any]] = {}
    parameters: ClassVar[dict[str, Any]] = {"time_limit": [], "flavour": []}

    def __init__(self, clock: Clock, seconds: float, answers: str = "fails") -> None:
        self.clock, self.seconds, self.answers = clock, seconds, answers
        self.given: list[dict[str, Any]] = []

    def sample(self, bqm: dimod.BinaryQuadraticModel, **given: Any) -> dimod.SampleSet:
        self.given.append(given)
        self.clock.now += self.seconds
        if self.answers == "fails":
            raise ConnectionError("offline")
        found = dimod.ExactSolver().sample(bqm)
        return found if self.answers == "well" else found.truncate(0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(1000.0)
    monkeypatch.setattr(fallback, "time", SimpleNamespace(monotonic=clock))
    return clock


def test_an_empty_answer_is_none(clock: Clock) -> None:
    silent = Timed(clock, 0.0, "empty")
    both = FallbackChain({"silent": silent, "exact": dimod.ExactSolver()})
    assert both.sample(QUESTION, 60.0).first.energy == -1.0
    assert "silent: " in both.failures[0]
    assert "quantum.empty_answer" in both.failures[0]
    with pytest.raises(SamplerError, match=r"quantum\.no_sampler_answered.*quantum\.empty_answer"):
        FallbackChain({"silent": silent}).sample(QUESTION, 60.0)


def test_each_one_may_use_an_equal_share_of_the_time_that_is_left(clock: Clock) -> None:
    samplers = [Timed(clock, 2.0), Timed(clock, 10.0), Timed(clock, 0.0, "well")]
    chain = FallbackChain({str(number): one for number, one in enumerate(samplers)})
    chain.sample(QUESTION, 30.0, flavour="sweet", seed=3)
    limits = [one.given[0].pop("time_limit") for one in samplers]
    assert limits == [10.0, 14.0, 18.0]
    assert [one.given for one in samplers] == [[{"flavour": "sweet"}]] * 3  # what each knows
    assert chain.answered_by == "2"


def test_where_all_the_time_is_used_none_is_left(clock: Clock) -> None:
    late, last = Timed(clock, 9.0), Timed(clock, 0.0, "well")
    FallbackChain({"late": late, "last": last}).sample(QUESTION, 5.0)
    assert (late.given, last.given) == ([{"time_limit": 2.5}], [{"time_limit": 0.0}])
