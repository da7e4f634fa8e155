"""Who is asked follows from the problem, and is told."""

from typing import Any, ClassVar

import dimod
import pytest

from infrastructure.features.quantum.samplers.auto_sampler import AutoSampler, choose
from infrastructure.features.quantum.samplers.exact_sampler import ExactSampler
from tests.features.quantum.samplers.questions import random_model


def path_of(num_variables: int) -> dimod.BinaryQuadraticModel:
    return dimod.BinaryQuadraticModel(
        {}, {(i, i + 1): 1.0 for i in range(num_variables - 1)}, "SPIN"
    )


@pytest.mark.parametrize(
    ("bqm", "num_ones", "name", "reason"),
    [
        (random_model(20, 0), None, "exact", "quantum.auto_enumerates_all(count=20)"),
        (
            random_model(21, 0),
            None,
            "dense_annealer",
            "quantum.problem_density(count=21, percent=100.0)",
        ),
        (path_of(500), 9, "dense_annealer", "quantum.auto_keeps_number_of_ones"),
        (path_of(500), None, "dense_annealer", "matrix"),
        (path_of(9000), None, "simulated_annealing", "sparse"),
        (
            dimod.BinaryQuadraticModel(30_000, "BINARY"),
            None,
            "simulated_annealing",
            "quantum.auto_too_large_for_matrix",
        ),
    ],
)
def test_size_and_structure_decide(
    bqm: dimod.BinaryQuadraticModel, num_ones: int | None, name: str, reason: str
) -> None:
    chosen, why = choose(bqm, num_ones)
    assert chosen == name
    assert reason in why


class Recorder(ExactSampler):
    calls: ClassVar[list[dict[str, Any]]] = []

    def sample(self, bqm: dimod.BinaryQuadraticModel, **given: Any) -> dimod.SampleSet:
        Recorder.calls.append(given)
        return super().sample(bqm, **given)


def test_the_choice_is_reported_and_gets_the_keywords_it_knows() -> None:
    made: list[str] = []

    def make(name: str) -> dimod.Sampler:
        made.append(name)
        return Recorder()

    sampler = AutoSampler(make)
    dimod.testing.assert_sampler_api(sampler)
    for _ in range(2):
        found = sampler.sample(random_model(5, 0), seed=1, time_limit=9, num_reads=2)
    assert found.info["sampler"] == "exact"
    assert found.info["reason"] == "quantum.auto_enumerates_all(count=5)"
    assert made == ["exact"]
    assert Recorder.calls[-1] == {"num_reads": 2}
