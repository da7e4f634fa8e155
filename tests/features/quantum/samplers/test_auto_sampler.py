"""Who is asked follows from the problem, and is told."""

from typing import Any, ClassVar

import dimod
import networkx
import pytest

from infrastructure.features.quantum.samplers.auto_sampler import (
    AutoSampler,
    choose,
    treewidth_at_most,
)
from infrastructure.features.quantum.samplers.exact_sampler import ExactSampler
from tests.features.quantum.samplers.questions import random_model


def of_graph(graph: Any) -> dimod.BinaryQuadraticModel:
    return dimod.BinaryQuadraticModel(
        dict.fromkeys(graph.nodes, 1.0), dict.fromkeys(graph.edges, -1.0), "SPIN"
    )


@pytest.mark.parametrize(
    ("bqm", "given", "name", "reason"),
    [
        (random_model(20, 0), {}, "exact", "quantum.auto_enumerates_all(count=20)"),
        (
            random_model(21, 0),
            {},
            "dense_annealer",
            "quantum.problem_density(count=21, percent=100.0)",
        ),
        (
            of_graph(networkx.path_graph(500)),
            {},
            "tree_decomposition",
            "quantum.auto_small_treewidth(width=1,",
        ),
        (of_graph(networkx.path_graph(500)), {"time_limit": 1.0}, "dense_annealer", "matrix"),
        (
            of_graph(networkx.path_graph(500)),
            {"num_ones": 9},
            "dense_annealer",
            "quantum.auto_keeps_number_of_ones",
        ),
        (of_graph(networkx.grid_2d_graph(40, 40)), {}, "dense_annealer", "matrix"),
        (of_graph(networkx.path_graph(9000)), {}, "simulated_annealing", "sparse"),
        (
            dimod.BinaryQuadraticModel(30_000, "BINARY"),
            {},
            "simulated_annealing",
            "quantum.auto_too_large_for_matrix",
        ),
    ],
)
def test_size_structure_and_time_decide(
    bqm: dimod.BinaryQuadraticModel, given: dict[str, Any], name: str, reason: str
) -> None:
    chosen, why = choose(bqm, **{"time_limit": None, "num_ones": None, **given})
    assert chosen == name
    assert reason in why


@pytest.mark.parametrize(
    ("graph", "width"),
    [
        (networkx.empty_graph(5), 0),
        (networkx.balanced_tree(3, 4), 1),
        (networkx.cycle_graph(30), 2),
        (networkx.complete_graph(9), 8),
        (networkx.grid_2d_graph(4, 30), 4),
    ],
)
def test_known_treewidths(graph: Any, width: int) -> None:
    found = treewidth_at_most(of_graph(graph), 12)
    assert found is not None
    assert found == width


def test_a_treewidth_above_the_limit_is_none() -> None:
    assert treewidth_at_most(of_graph(networkx.complete_graph(14)), 12) is None


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


class Quick(ExactSampler):
    def sample(self, bqm: dimod.BinaryQuadraticModel, **given: Any) -> dimod.SampleSet:
        row = dict.fromkeys(bqm.variables, 1)
        return dimod.SampleSet.from_samples_bqm(row, bqm, info={"is_cut_off": False})


@pytest.mark.parametrize(("seconds", "is_cut_off"), [(1.0, True), (60.0, False), (None, False)])
def test_a_sampler_that_the_clock_has_chosen_is_reported(
    seconds: float | None, is_cut_off: bool
) -> None:
    """With more time it is another one, so its answer must not count as repeatable."""
    path = of_graph(networkx.path_graph(50))
    found = AutoSampler(lambda name: Quick()).sample(path, time_limit=seconds)
    assert found.info["is_cut_off"] == is_cut_off
    chosen = AutoSampler(lambda name: Quick()).sample(path, time_limit=1.0, num_ones=5)
    assert not chosen.info["is_cut_off"]
