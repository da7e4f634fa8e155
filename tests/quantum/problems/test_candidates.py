"""A large pool is cut so that nothing of the answer is lost."""

import numpy as np
import pytest

from infrastructure.quantum.problems.candidates import candidates
from infrastructure.quantum.problems.data_selection import DataSelection
from tests.quantum.problems.pools import pool


def distance(chosen_from: np.ndarray, gradients: np.ndarray, target: np.ndarray, k: int) -> float:
    asked = DataSelection(chosen_from.tolist(), gradients[chosen_from], k, target=target)
    return asked.energy_of(asked.indices(asked.alternatives()["greedy_and_exchange"]))


@pytest.mark.parametrize("seed", range(4))
def test_the_answer_is_as_near_as_one_from_the_whole_pool(seed: int) -> None:
    gradients, target = pool(600, 128, seed, num_target=64)
    kept = candidates(gradients, 150, target=target, seed=seed)
    assert len(set(kept.tolist())) == len(kept) == 150
    whole = distance(np.arange(600), gradients, target, 60)
    chance = np.sort(np.random.default_rng(seed).permutation(600)[:150])
    assert distance(kept, gradients, target, 60) < 1.25 * whole
    assert distance(chance, gradients, target, 60) > 1.5 * whole


def test_a_small_pool_is_kept_whole_and_the_same_seed_cuts_the_same() -> None:
    gradients, target = pool(50, 8, 0)
    assert candidates(gradients, 50).tolist() == list(range(50))
    one = candidates(gradients, 17, target=target, seed=1)
    assert len(one) == 17
    assert one.tolist() == candidates(gradients, 17, target=target, seed=1).tolist()
    assert one.tolist() != candidates(gradients, 17, target=target, seed=2).tolist()


def test_no_candidates_are_refused() -> None:
    with pytest.raises(ValueError, match="0 candidates"):
        candidates(pool(9, 4, 0)[0], 0)
