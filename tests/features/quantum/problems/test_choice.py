"""The choice of k of n items, on numbers that are small enough to compute by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from infrastructure.features.quantum.problems.choice import Choice
from infrastructure.features.quantum.problems.problem import Training

PAIRS = np.array(
    [[9.0, 1.0, -2.0, 3.0], [1.0, 9.0, 4.0, -1.0], [-2.0, 4.0, 9.0, 0.5], [3.0, -1.0, 0.5, 9.0]]
)


class Items(Choice):
    """A choice that no training applies."""

    name = "items"

    def apply(self, decision: Any, training: Training) -> None:
        raise NotImplementedError


def items(n: int, k: int, seed: int = 0) -> Items:
    """Random costs, with a diagonal that is not to be read."""
    random = np.random.default_rng(seed)
    half = random.standard_normal((n, n))
    pairs = (half + half.T + 50 * np.eye(n)).astype(np.float32)
    return Items(range(n), k, random.standard_normal(n), pairs, pair_scale=0.3, offset=7.0)


def cost(problem: Items, chosen: Sequence[int]) -> float:
    """The objective by its definition."""
    inner = sum(float(problem.pairs[i, j]) for i in chosen for j in chosen if i < j)
    return 7.0 + sum(float(problem.linear[i]) for i in chosen) + 0.3 * inner


@pytest.mark.parametrize(
    ("linear", "num_chosen", "largest"),
    [
        ([3, -1, 2, -6], 1, 6.5),  # dropping the last item costs most: 6 + 0.5
        ([3, -1, 2, -2], 1, 4.5),  # adding the first one: 3 + 1.5
        ([3, -1, 2, -2], 2, 4.5),
        ([3, -1, 2, -2], 3, 5.0),  # next to two others: 3 + 1.5 + 0.5
    ],
)
def test_the_penalty_is_a_little_more_than_the_dearest_flip(
    linear: list[float], num_chosen: int, largest: float
) -> None:
    problem = Items("abcd", num_chosen, np.array(linear), PAIRS, pair_scale=0.5)
    assert problem.penalty_strength() == pytest.approx(1.05 * largest)
    nothing = Items("ab", 1, np.zeros(2), np.eye(2))
    assert nothing.penalty_strength() == 1.0


@pytest.mark.parametrize(("n", "k"), [(7, 3), (100, 40), (230, 3)])
def test_the_energy_is_the_objective_and_the_penalty(n: int, k: int) -> None:
    """Also of a model that is built in several pieces, the last of which is short."""
    problem, random = items(n, k), np.random.default_rng(1)
    bqm, strength = problem.formulate(), problem.penalty_strength()
    assert (bqm.dtype, list(bqm.variables)) == (np.float32, list(range(n)))
    for count in (0, 1, k, k + 2):
        chosen = random.permutation(n)[:count]
        expected = cost(problem, chosen.tolist())
        assert problem.energy_of(chosen) == pytest.approx(expected, rel=1e-6)
        energy = bqm.energy(problem.sample_of(chosen))
        assert energy == pytest.approx(expected + strength * (count - k) ** 2, rel=1e-4)


@pytest.mark.parametrize("start", [[], [8], [0, 1, 2, 3, 4, 5, 6], list(range(9))])
@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_count_is_repaired_step_by_step_each_the_cheapest(
    start: list[int], seed: int
) -> None:
    problem, chosen = items(9, 4, seed), set(start)
    while len(chosen) != 4:
        others = set(range(9)) - chosen
        next_ones = [chosen | {i} for i in others] if len(chosen) < 4 else [*_dropped(chosen)]
        chosen = min(next_ones, key=lambda one: cost(problem, sorted(one)))
    sample = problem.sample_of(np.array(start, dtype=np.int64))
    assert problem.repair(sample) == problem.sample_of(np.array(sorted(chosen)))
    assert problem.decode(sample) == sorted(chosen)


def _dropped(chosen: set[int]) -> list[set[int]]:
    return [chosen - {i} for i in chosen]


REFUSED: dict[str, dict[str, Any]] = {
    "quantum.duplicate_label(problem=items, label=b)": {"labels": ["a", "b", "b"]},
    "quantum.cannot_choose_that_many(problem=items, num_chosen=4, total=3)": {"num_chosen": 4},
    "quantum.cannot_choose_that_many(problem=items, num_chosen=0, total=3)": {"num_chosen": 0},
    "quantum.problem_shapes_differ(problem=items, count=3, shapes=(2,) and (3, 3))": {
        "linear": np.zeros(2)
    },
    "quantum.problem_shapes_differ(problem=items, count=3, shapes=(3,) and (3, 2))": {
        "pairs": np.zeros((3, 2))
    },
    "quantum.pairs_wrong_dtype(problem=items, dtype=int64)": {
        "pairs": np.zeros((3, 3), dtype=np.int64)
    },
}
INFINITE = "quantum.problem_number_not_finite(problem=items)"
NOT_FINITE = [
    {"linear": np.full(3, np.nan)},
    {"pairs": np.full((3, 3), np.nan)},
    {"offset": np.inf},
]


@pytest.mark.parametrize(
    ("reason", "given"), [*REFUSED.items(), *((INFINITE, given) for given in NOT_FINITE)]
)
def test_numbers_that_do_not_fit_are_refused(reason: str, given: dict[str, Any]) -> None:
    right = {"labels": "abc", "num_chosen": 2, "linear": np.zeros(3), "pairs": np.eye(3)}
    with pytest.raises(ValueError, match=r"^quantum\.") as refused:
        Items(**{**right, **given})
    assert str(refused.value).startswith(reason)


def test_as_many_as_there_are_may_be_chosen_and_sums_may_overflow() -> None:
    huge = np.full((2, 2), 3e38, dtype=np.float32)
    with np.errstate(over="ignore"):
        problem = Items("ab", 2, np.zeros(2), huge)
    assert problem.facts() == {"num_candidates": 2, "num_chosen": 2}
