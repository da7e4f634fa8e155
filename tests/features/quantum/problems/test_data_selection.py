"""The energy is the distance by its definition; every optimum has k examples and is the best k."""

import subprocess
import sys
from collections.abc import Sequence
from itertools import combinations

import dimod
import numpy as np
import pytest

from infrastructure.features.quantum.problems.data_selection import DataSelection
from infrastructure.features.quantum.problems.selection_baselines import (
    deduplicated_top_relevance,
    exchanged,
    greedy_matching,
)
from tests.features.quantum.problems.pools import pool

SEEDS = range(8)


class RecordedTraining:
    """A training that only listens."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def select_examples(self, ids: Sequence[int]) -> None:
        self.calls.append(("select_examples", ids))

    def train_only(self, blocks: Sequence[str]) -> None:
        self.calls.append(("train_only", blocks))

    def keep_components(self, kept: object) -> None:
        self.calls.append(("keep_components", kept))


def problem(n: int, k: int, seed: int, *, with_target: bool = True) -> DataSelection:
    candidates, target = pool(n, 12, seed)
    ids = [7 * i + 3 for i in range(n)]
    return DataSelection(ids, candidates, k, target=target if with_target else None, seed=seed)


def distance(candidates: np.ndarray, chosen: Sequence[int], goal: np.ndarray) -> float:
    """By the definition, in float64."""
    rows = candidates.astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return float(((rows[list(chosen)].mean(axis=0) - goal) ** 2).sum())


def goal_of(target: np.ndarray) -> np.ndarray:
    """rho t, with rho from the pairs of different rows."""
    rows = target.astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = [rows[i] @ rows[j] for i, j in combinations(range(len(rows)), 2)]
    mean = rows.mean(axis=0)
    return np.sqrt(np.mean(cosines)) * mean / np.linalg.norm(mean)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("with_target", [True, False])
def test_the_energy_of_k_examples_is_their_distance_to_the_target(
    seed: int, with_target: bool
) -> None:
    instance = problem(12, 4, seed, with_target=with_target)
    candidates, target = pool(12, 12, seed)
    units = candidates.astype(np.float64)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    goal = goal_of(target) if with_target else units.mean(axis=0)
    bqm = instance.formulate()
    random = np.random.default_rng(seed)
    for _ in range(20):
        chosen = random.permutation(12)[:4]
        true = distance(candidates, chosen, goal)
        assert bqm.energy(instance.sample_of(chosen)) == pytest.approx(true, abs=2e-6)
        assert instance.energy_of(chosen) == pytest.approx(true, abs=2e-7)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("n", "k"), [(10, 1), (10, 3), (9, 8), (12, 6), (5, 5)])
@pytest.mark.parametrize("with_target", [True, False])
def test_the_optimum_has_k_and_is_the_best_k(n: int, k: int, seed: int, with_target: bool) -> None:
    instance = problem(n, k, seed, with_target=with_target)
    found = dimod.ExactSolver().sample(instance.formulate())
    best = min(instance.energy_of(np.array(c)) for c in combinations(range(n), k))
    assert sum(found.first.sample.values()) == k
    assert found.first.energy == pytest.approx(best, abs=2e-6)
    assert instance.energy_of(instance.indices(found.first.sample)) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", [1, 3, 7])
def test_wherever_the_count_is_wrong_some_flip_towards_it_wins(k: int, seed: int) -> None:
    """What the penalty's strength promises, at each of the 2^9 states of a pool with duplicates."""
    instance = problem(9, k, seed)
    bqm = instance.formulate()
    states = np.array(list(np.ndindex(*[2] * 9)), dtype=np.int8)
    energy = {
        tuple(s): e for s, e in zip(states, bqm.energies((states, instance.labels)), strict=True)
    }
    for state, own in energy.items():
        if (wrong := sum(state) - k) != 0:
            near = [i for i in range(9) if state[i] == (wrong > 0)]
            flips = [energy[(*state[:i], 1 - state[i], *state[i + 1 :])] for i in near]
            assert min(flips) < own


@pytest.mark.parametrize(
    ("rows", "k", "flip"),
    [
        ([[1, 0], [1, 0], [0, 1]], 1, 10 / 27),  # adding one costs most
        ([[1, 0], [1, 0], [0, 1]], 2, 5 / 54),  # dropping one
        ([[3, 0]] * 8, 1, 2.0),  # any one, at the most
        ([[3, 0]] * 20, 2, 1.5),
    ],
)
def test_the_penalty_is_no_larger_than_a_flip_may_cost(
    rows: list[list[int]], k: int, flip: float
) -> None:
    instance = DataSelection(range(len(rows)), np.array(rows), k)
    assert instance.penalty_strength() == pytest.approx(1.05 * (1 / k**2 + flip))


def test_baselines_and_facts_are_those_of_the_gradients() -> None:
    rows = np.array([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0], [0.6, 0.8]])
    target = np.array([[1.0, 0.0], [4.0, 3.0]])
    instance = DataSelection([5, 3, 8, 9], rows, 2, target=target, seed=5)
    drawn = np.random.default_rng(5).permutation(4)[:2]
    assert {name: instance.decode(one) for name, one in instance.alternatives().items()} == {
        "greedy_and_exchange": [5, 9],
        "greedy": [5, 9],
        "deduplicate_then_top": [5, 9],
        "top_relevance": [5, 3],
        "random": [[5, 3, 8, 9][i] for i in sorted(drawn)],
    }
    agreement = {"target_agreement": pytest.approx(0.8**0.5)}
    assert instance.facts() == {"num_candidates": 4, "num_chosen": 2, **agreement}


def test_the_variables_are_the_ids_in_their_order() -> None:
    assert list(problem(9, 3, 0).formulate().variables) == [7 * i + 3 for i in range(9)]


def test_the_same_problem_is_the_same_model() -> None:
    assert problem(30, 7, 5).formulate() == problem(30, 7, 5).formulate()
    assert problem(30, 7, 5).alternatives() == problem(30, 7, 5).alternatives()


def test_any_answer_is_decoded_to_k_ids() -> None:
    instance = problem(30, 7, 1)
    random = np.random.default_rng(1)
    for share in (0.0, 0.1, 0.23, 0.5, 1.0):
        raw = {label: int(random.random() < share) for label in instance.labels}
        decision = instance.decode(raw)
        assert len(set(decision)) == 7
        assert set(decision) <= set(instance.labels)
        assert instance.decode(instance.repair(raw)) == decision
        if sum(raw.values()) == 7:
            assert instance.repair(raw) == raw


def test_one_too_many_is_mended_by_the_best_single_drop() -> None:
    instance = problem(12, 4, 3)
    five = np.array([0, 2, 5, 7, 11])
    mended = instance.indices(instance.repair(instance.sample_of(five)))
    drops = [np.delete(five, i) for i in range(5)]
    assert instance.energy_of(mended) == min(instance.energy_of(drop) for drop in drops)


def test_one_too_few_is_mended_by_the_best_addition() -> None:
    instance = problem(12, 4, 3)
    mended = instance.indices(instance.repair(instance.sample_of(np.array([0, 2, 5]))))
    additions = [np.array([0, 2, 5, i]) for i in range(12) if i not in (0, 2, 5)]
    assert instance.energy_of(mended) == pytest.approx(
        min(map(instance.energy_of, additions)), abs=1e-9
    )


def test_plain_answers_keep_the_count_and_stand_in_their_known_order() -> None:
    instance = problem(90, 9, 2)
    energies = {
        name: instance.energy_of(instance.indices(s)) for name, s in instance.alternatives().items()
    }
    assert next(iter(energies)) == "greedy_and_exchange"
    assert energies["greedy_and_exchange"] <= energies["greedy"] + 1e-9
    assert energies["greedy"] < energies["deduplicate_then_top"]
    assert energies["greedy"] < energies["random"]
    assert all(sum(s.values()) == 9 for s in instance.alternatives().values())


def test_greedy_takes_the_best_step_each_time() -> None:
    candidates, target = pool(15, 12, 4)
    instance = problem(15, 5, 4)
    chosen = greedy_matching(instance.pairs, instance.relevance, instance.rho, 5)
    for count in range(5):
        before = list(chosen[:count])
        tried = {
            i: distance(candidates, [*before, i], goal_of(target))
            for i in range(15)
            if i not in before
        }
        assert tried[chosen[count]] == pytest.approx(min(tried.values()), abs=1e-6)


def test_exchanges_end_where_no_exchange_wins() -> None:
    instance = problem(15, 5, 6)
    numbers = (instance.pairs, instance.relevance, instance.rho)
    chosen = exchanged(np.arange(5), *numbers, num_passes=50)
    best = instance.energy_of(chosen)
    for place in range(5):
        for new in set(range(15)) - set(chosen.tolist()):
            swapped = chosen.copy()
            swapped[place] = new
            assert instance.energy_of(swapped) >= best - 1e-6


def test_duplicates_are_passed_over_as_long_as_there_is_anything_else() -> None:
    rows = np.eye(4, 6)[[0, 0, 1, 0, 2, 3]]
    relevance = np.array([0.9, 0.9, 0.5, 0.9, 0.4, 0.3])
    assert deduplicated_top_relevance(rows @ rows.T, relevance, 3).tolist() == [0, 2, 4]
    assert deduplicated_top_relevance(rows @ rows.T, relevance, 6).tolist() == [0, 2, 4, 5, 1, 3]
    alike = np.eye(4)
    alike[0, 1], alike[0, 2] = 0.95, 0.9  # the second is just different enough
    assert deduplicated_top_relevance(alike, np.array([4.0, 3, 2, 1]), 3).tolist() == [0, 2, 3]


def test_the_decision_is_applied_by_one_call() -> None:
    training = RecordedTraining()
    problem(9, 3, 0).apply([3, 10, 17], training)
    assert training.calls == [("select_examples", [3, 10, 17])]


UNUSABLE = r"quantum\.unusable_gradients\(count={}, role={}, problem=quantum\.gradient_zero_or_not_"
SHAPE = r"quantum\.gradients_wrong_shape\(role={}, shape=\({}\), wanted={}\)"
WRONG = {
    UNUSABLE.format(1, "example") + r"finite\(\), examples=\[5\]": {
        "gradients": np.array([[1.0, 0.0], [np.nan, 0.0], [1.0, 1.0]])
    },
    UNUSABLE.format(6, "example") + r"finite\(\), examples=\[8, 7, 5, 4, 3\]": {
        "ids": [9, 8, 7, 5, 4, 3, 2],
        "gradients": np.array([[1.0, 1.0], *[[0.0, 0.0]] * 6]),
    },
    UNUSABLE.format(2, "target") + r"finite\(\), examples=\[0, 2\]": {
        "target": np.array([[np.inf, 0.0], [1.0, 0.0], [0.0, 0.0]])
    },
    SHAPE.format("example", "2, 2", " for 3 ids"): {"gradients": np.ones((2, 2))},
    SHAPE.format("example", "3,", " for 3 ids"): {"gradients": np.ones(3)},
    SHAPE.format("target", "2,", ""): {"target": np.ones(2)},
    r"quantum\.duplicate_label.*label=1": {"ids": [1, 1, 2]},
    r"quantum\.cannot_choose_that_many.*num_chosen=4, total=3": {"num_chosen": 4},
    r"quantum\.cannot_choose_that_many.*num_chosen=0, total=3": {"num_chosen": 0},
    r"quantum\.target_gradient_size_differs.*target_size=3, size=2": {"target": np.ones((2, 3))},
    r"quantum\.no_common_target_direction\(count=2\)": {
        "target": np.array([[1.0, 0.0], [-1.0, 0.0]])
    },
    r"quantum\.too_few_target_examples.*count=1": {"target": np.ones((1, 2))},
}


@pytest.mark.parametrize("reason", WRONG)
def test_what_is_no_problem_is_refused_with_the_reason(reason: str) -> None:
    right = {"ids": [4, 5, 6], "gradients": np.eye(3, 2) + 0.1, "num_chosen": 2}
    with pytest.raises(ValueError, match=reason):
        DataSelection(**{**right, **WRONG[reason]})


MEASURED = """
import resource, time, numpy as np
from infrastructure.features.quantum.problems.data_selection import DataSelection
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
rows = np.random.default_rng(0).standard_normal(({n}, 64), dtype=np.float32) + 0.2
asked = DataSelection(range({n}), rows, {n} // 10)
begun, before = time.process_time(), peak()
bqm = asked.formulate()
print(time.process_time() - begun, peak() - before, bqm.num_interactions)
"""


def measure(n: int) -> tuple[float, float, int]:
    """CPU seconds, MB and interactions of a model of n examples, in a process of its own."""
    command = [sys.executable, "-c", MEASURED.format(n=n)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(output[0]), float(output[1]), int(output[2])


def test_a_large_model_takes_seconds_and_its_own_size_in_memory() -> None:
    n = 2000  # 5000 by hand: about 4 s and 290 MB beside the 100 MB of cosines
    seconds, megabytes, num_interactions = measure(n)
    assert num_interactions == n * (n - 1) // 2
    assert (
        megabytes < 20 * n * n / 2**20
    )  # 8 bytes for each ordered pair, room to grow, little else
    assert seconds < 10


def test_labels_stay_with_their_examples_in_whatever_order_they_are_given() -> None:
    candidates, target = pool(8, 12, 1)
    chosen: list[set[int]] = []
    for ids in (list(range(8)), [5, 0, 7, 2, 6, 1, 4, 3]):
        instance = DataSelection(ids, candidates, 3, target=target)
        best = dimod.ExactSolver().sample(instance.formulate()).first.sample
        chosen.append({ids.index(label) for label in instance.decode(best)})  # type: ignore[attr-defined]
    assert chosen[0] == chosen[1]
