"""Blocks: the energy is the loss change as defined, the optimum is the best."""

from itertools import combinations

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


def test_blocks_are_given_by_name() -> None:
    training = RecordedTraining()
    instance = blocks(5, 2, 0)
    instance.apply(instance.decode(instance.sample_of(np.array([1, 4]))), training)
    assert training.calls == [("train_only", ["layer 1", "layer 4"])]


def test_each_baseline_chooses_by_its_own_numbers() -> None:
    curvature = np.diag([0.0, 9.0, 0.0, 0.0, 0.0])  # which the first order leaves out
    curvature[0, 1], curvature[1, 0] = 1.0, 3.0
    instance = BlockSelection(
        list("abcde"),
        np.array([-1.0, -3.0, 2.0, -2.0, 0.0]),
        curvature,
        2,
        gradient_norms=np.array([5.0, 1.0, 4.0, 2.0, 3.0]),
        seed=3,
        number=4,
    )
    drawn = sorted(np.random.default_rng([3, 4]).permutation(5)[:2])
    assert {name: instance.decode(one) for name, one in instance.alternatives().items()} == {
        "gradient_norm": ["a", "c"],
        "first_order": ["b", "d"],
        "random": ["abcde"[i] for i in drawn],
        "cyclic": ["a", "b"],
        "top": ["d", "e"],
    }
    assert next(iter(instance.alternatives())) == "gradient_norm"
    assert all(list(one) == instance.labels for one in instance.alternatives().values())
    both = np.array([0, 1])
    assert instance.energy_of(both) == -1 - 3 + 9 / 2 + (1 + 3) / 2
    energy = instance.formulate().energy(dict(zip("abcde", [1, 1, 0, 0, 0], strict=True)))
    assert energy == pytest.approx(instance.energy_of(both))


def test_without_curvature_the_optimum_is_the_largest_decrease() -> None:
    linear, _ = numbers(9, 3)
    nothing = np.zeros((9, 9))
    instance = BlockSelection(list("abcdefghi"), linear, nothing, 4, gradient_norms=linear)
    found = dimod.ExactSolver().sample(instance.formulate()).first
    assert instance.indices(found.sample).tolist() == largest_decrease(linear, 4).tolist()


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
    for wrong, shape in ((linear, r"\(3,\)"), (curvature[:2], r"\(2, 3\)")):
        with pytest.raises(ValueError, match=rf"quantum\.curvature_not_square\(shape={shape}\)"):
            BlockSelection(list("abc"), linear, wrong, 1, gradient_norms=linear)
    differ = r"quantum\.block_statistics_shapes_differ\(shapes=\(3,\), \(2,\) and \(3, 3\)\)"
    with pytest.raises(ValueError, match=differ):
        BlockSelection(list("abc"), linear, curvature, 1, gradient_norms=linear[:2])
    with pytest.raises(ValueError, match=r"quantum\.problem_number_not_finite"):
        BlockSelection(list("abc"), linear * np.nan, curvature, 1, gradient_norms=linear)
