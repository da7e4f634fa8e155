"""Blocks and components: the energy is the loss change as defined, the optimum is the best."""

from itertools import combinations
from typing import Any

import dimod
import numpy as np
import pytest

from infrastructure.features.quantum.problems.block_baselines import (
    cyclic_blocks,
    largest_decrease,
    largest_gradient_norm,
    random_blocks,
    top_blocks,
)
from infrastructure.features.quantum.problems.block_selection import BlockSelection, sampled_fisher
from infrastructure.features.quantum.problems.rank_allocation import RankAllocation
from tests.features.quantum.problems.test_data_selection import RecordedTraining

SEEDS = range(6)


def numbers(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Moves along which the loss falls, and a curvature that is felt."""
    random = np.random.default_rng(seed)
    root = random.standard_normal((2 * n, n))
    return random.normal(-1.0, 0.7, n), 0.3 * root.T @ root / n


def blocks(n: int, k: int, seed: int) -> BlockSelection:
    linear, curvature = numbers(n, seed)
    names = [f"layer {i}" for i in range(n)]
    return BlockSelection(names, linear, curvature, k, gradient_norms=-linear, seed=seed, number=2)


def ranks(seed: int, kept: int) -> tuple[RankAllocation, np.ndarray, np.ndarray]:
    gradients, fisher = numbers(9, seed)
    instance = RankAllocation({"q": 3, "v": 4, "up": 2}, gradients, fisher, kept, seed=seed)
    return instance, gradients, fisher


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", [1, 4, 9])
def test_the_optimum_is_the_best_choice_of_k_blocks(seed: int, k: int) -> None:
    linear, curvature = numbers(9, seed)
    true = {
        chosen: linear[list(chosen)].sum() + curvature[np.ix_(chosen, chosen)].sum() / 2
        for chosen in combinations(range(9), k)
    }
    instance = blocks(9, k, seed)
    found = dimod.ExactSolver().sample(instance.formulate()).first
    best = min(true, key=lambda chosen: true[chosen])
    assert instance.decode(found.sample) == [f"layer {i}" for i in best]
    assert found.energy == pytest.approx(true[best])
    assert instance.energy_of(np.array(best)) == pytest.approx(true[best])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kept", [1, 4, 8])
def test_the_optimum_is_the_best_choice_of_components(seed: int, kept: int) -> None:
    instance, gradients, fisher = ranks(seed, kept)

    def change(stay: tuple[int, ...]) -> float:
        gone = [i for i in range(9) if i not in stay]
        return float(-gradients[gone].sum() + fisher[np.ix_(gone, gone)].sum() / 2)

    found = dimod.ExactSolver().sample(instance.formulate()).first
    best = min(combinations(range(9), kept), key=change)
    assert instance.indices(found.sample).tolist() == list(best)
    assert found.energy == pytest.approx(change(best))


def test_components_are_given_by_module() -> None:
    instance, *_ = ranks(0, 3)
    decision = instance.decode(instance.sample_of(np.array([1, 5, 6])))
    assert decision == {"q": [1], "v": [2, 3], "up": []}
    training = RecordedTraining()
    instance.apply(decision, training)
    assert training.calls == [("keep_components", decision)]


def test_blocks_are_given_by_name() -> None:
    training = RecordedTraining()
    instance = blocks(5, 2, 0)
    instance.apply(instance.decode(instance.sample_of(np.array([1, 4]))), training)
    assert training.calls == [("train_only", ["layer 1", "layer 4"])]


def test_plain_answers_keep_the_count() -> None:
    for instance, count in ((blocks(9, 4, 1), 4), (ranks(1, 5)[0], 5)):
        for sample in instance.alternatives().values():
            assert sum(sample.values()) == count
            assert list(sample) == instance.labels
    assert next(iter(blocks(9, 4, 1).alternatives())) == "gradient_norm"
    assert next(iter(ranks(1, 5)[0].alternatives())) == "diagonal_fisher"


def test_without_curvature_the_optimum_is_the_largest_decrease() -> None:
    linear, _ = numbers(9, 3)
    nothing = np.zeros((9, 9))
    instance = BlockSelection(list("abcdefghi"), linear, nothing, 4, gradient_norms=linear)
    found = dimod.ExactSolver().sample(instance.formulate()).first
    assert instance.indices(found.sample).tolist() == largest_decrease(linear, 4).tolist()


def test_a_diagonal_fisher_is_sorted() -> None:
    fisher = np.diag([3.0, 1.0, 2.0, 5.0])
    instance = RankAllocation({"q": 4}, np.zeros(4), fisher, 2)
    found = dimod.ExactSolver().sample(instance.formulate()).first
    assert instance.decode(found.sample) == {"q": [0, 3]}
    assert instance.decode(instance.alternatives()["diagonal_fisher"]) == {"q": [0, 3]}


def test_plain_blocks() -> None:
    assert largest_gradient_norm(np.array([1.0, 3.0, 3.0, 2.0]), 2).tolist() == [1, 2]
    assert largest_decrease(np.array([-1.0, -3.0, 2.0]), 1).tolist() == [1]
    assert top_blocks(5, 2).tolist() == [3, 4]
    assert [cyclic_blocks(5, 2, number).tolist() for number in range(3)] == [[3, 4], [1, 2], [0, 4]]
    assert random_blocks(50, 5, 0, 1).tolist() == random_blocks(50, 5, 0, 1).tolist()
    drawn = [random_blocks(10, 3, 0, number).tolist() for number in range(200)]
    assert all(abs(sum(i in one for one in drawn) - 60) < 30 for i in range(10))


def test_the_fisher_of_sums_is_that_of_a_token() -> None:
    random = np.random.default_rng(0)
    tokens = random.standard_normal((4000, 25, 3)) @ np.diag([1.0, 2.0, 0.5])
    found = sampled_fisher(tokens.sum(axis=1), 4000 * 25)
    np.testing.assert_allclose(found, np.diag([1.0, 4.0, 0.25]), atol=0.25)


def test_what_does_not_fit_is_refused() -> None:
    linear, curvature = numbers(3, 0)
    with pytest.raises(ValueError, match=r"quantum\.curvature_not_square"):
        BlockSelection(list("abc"), linear, linear, 1, gradient_norms=linear)
    with pytest.raises(ValueError, match=r"quantum\.block_statistics_shapes_differ"):
        BlockSelection(list("abc"), linear, curvature, 1, gradient_norms=linear[:2])
    with pytest.raises(ValueError, match=r"quantum\.problem_number_not_finite"):
        BlockSelection(list("abc"), linear * np.nan, curvature, 1, gradient_norms=linear)
    wrong: dict[str, Any] = {"ranks": {"q": 2}, "gradients": linear, "fisher": curvature}
    with pytest.raises(ValueError, match=r"quantum\.rank_allocation_shapes_differ.*count=2"):
        RankAllocation(**wrong, num_kept=1)
