"""Budget, chain and ratio: each is the best of all subsets, counted one by one."""

from collections.abc import Iterator
from itertools import combinations

import dimod
import numpy as np
import pytest

from infrastructure.quantum.problems.block_costs import (
    BlockBudget,
    BlockChain,
    most_gain_per_cost,
)
from infrastructure.quantum.problems.problem import Sample
from tests.quantum.problems.test_block_selection import numbers
from tests.quantum.problems.test_data_selection import Told

SEEDS = range(8)
NAMES = [f"layer {i}" for i in range(7)]


def subsets(n: int) -> Iterator[list[int]]:
    for size in range(n + 1):
        yield from (list(chosen) for chosen in combinations(range(n), size))


def change(seed: int, chosen: list[int]) -> float:
    linear, curvature = numbers(7, seed)
    return float(linear[chosen].sum() + curvature[np.ix_(chosen, chosen)].sum() / 2)


def depth_cost(chosen: list[int], reach: float, train: float) -> float:
    return reach * (7 - min(chosen)) + train * len(chosen) if chosen else 0.0


def budget(seed: int, most: int) -> BlockBudget:
    costs = np.random.default_rng(seed).integers(1, 9, 7).tolist()
    return BlockBudget(NAMES, *numbers(7, seed), costs=costs, budget=most)


def chain(seed: int, price: float) -> BlockChain:
    return BlockChain(NAMES, *numbers(7, seed), price=price, reach_cost=1.0, train_cost=0.5)


def lowest(asked: BlockBudget | BlockChain) -> tuple[Sample, float]:
    found = dimod.ExactSolver().sample(asked.formulate()).first
    return found.sample, found.energy


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("most", [1, 7, 13, 60])
def test_the_best_within_the_budget(seed: int, most: int) -> None:
    asked = budget(seed, most)
    allowed = [s for s in subsets(7) if sum(asked.costs[i] for i in s) <= most]
    best = min(allowed, key=lambda chosen: change(seed, chosen))
    sample, energy = lowest(asked)
    assert asked.decode(sample) == [NAMES[i] for i in best]
    assert energy == pytest.approx(change(seed, best))
    assert asked.repair(sample) == sample


@pytest.mark.parametrize("seed", SEEDS)
def test_any_answer_is_mended_into_the_budget(seed: int) -> None:
    asked, random = budget(seed, 11), np.random.default_rng(seed)
    bqm = asked.formulate()
    for _ in range(30):
        raw = {name: int(random.random() < 0.6) for name in bqm.variables}
        mended = asked.repair(raw)
        chosen = asked.indices(mended).tolist()
        assert sum(asked.costs[i] for i in chosen) <= 11
        assert bqm.energy(mended) == pytest.approx(change(seed, chosen))
        assert set(asked.decode(raw)) <= {name for name in NAMES if raw[name]}
    for sample in asked.alternatives().values():
        assert asked.repair(sample) == sample


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("price", [0.0, 0.05, 0.4, 3.0])
def test_the_best_where_depth_costs(seed: int, price: float) -> None:
    asked = chain(seed, price)

    def total(chosen: list[int]) -> float:
        return change(seed, chosen) + price * depth_cost(chosen, 1.0, 0.5)

    best = min(subsets(7), key=total)
    sample, energy = lowest(asked)
    assert asked.decode(sample) == [NAMES[i] for i in best]
    assert energy == pytest.approx(total(best))
    for plain in asked.alternatives().values():
        chosen = asked.indices(plain).tolist()
        assert asked.formulate().energy(plain) == pytest.approx(total(chosen))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_most_gain_per_cost(seed: int) -> None:
    def ratio(chosen: list[int]) -> float:
        return -change(seed, chosen) / (2.0 + depth_cost(chosen, 1.0, 0.5))

    best = max(subsets(7), key=ratio)
    names, gain = most_gain_per_cost(chain(seed, 0.0), 2.0, lambda asked: lowest(asked)[0])
    assert names == [NAMES[i] for i in best]
    assert gain == pytest.approx(ratio(best))


def test_a_bad_solver_does_no_harm_to_the_ratio() -> None:
    nothing = dict.fromkeys([*NAMES, *chain(0, 0.0).reached], 0)
    _, gain = most_gain_per_cost(chain(0, 0.0), 2.0, lambda asked: nothing)
    tops = [list(range(low, 7)) for low in range(8)]
    best = max(-change(0, top) / (2.0 + depth_cost(top, 1.0, 0.5)) for top in tops)
    assert gain == pytest.approx(best)


def test_where_nothing_lowers_the_loss_nothing_is_chosen() -> None:
    asked = BlockChain(NAMES, np.ones(7), np.zeros((7, 7)), price=0.0)
    assert most_gain_per_cost(asked, 1.0, lambda asked: lowest(asked)[0]) == ([], 0.0)


def test_blocks_are_told_by_name() -> None:
    for asked in (budget(0, 11), chain(0, 0.1)):
        training = Told()
        asked.apply(asked.decode(lowest(asked)[0]), training)
        assert training.calls == [("train_only", asked.decode(lowest(asked)[0]))]


def test_wrong_numbers_are_refused() -> None:
    linear, curvature = numbers(7, 0)
    for costs, most in (([1] * 6, 5), ([0] * 7, 5), ([1] * 7, 0), ([1.5] * 7, 5)):
        with pytest.raises(ValueError, match="whole numbers of 1 or more"):
            BlockBudget(NAMES, linear, curvature, costs=costs, budget=most)
    with pytest.raises(ValueError, match="0 or more"):
        BlockChain(NAMES, linear, curvature, price=-1.0)
    with pytest.raises(ValueError, match="each needs its own name"):
        BlockChain(["a"] * 7, linear, curvature, price=1.0)
    with pytest.raises(ValueError, match="shapes"):
        BlockChain(NAMES[:6], linear, curvature, price=1.0)
    with pytest.raises(ValueError, match="not finite"):
        BlockChain(NAMES, linear * np.nan, curvature, price=1.0)
    with pytest.raises(ValueError, match="base_cost is 0"):
        most_gain_per_cost(chain(0, 0.0), 0, lambda asked: {})
