"""The order of examples: a pure function of (seed, epoch), the same on every machine.

`numpy.random.RandomState` is used on purpose: NumPy guarantees its random numbers, unlike those of
newer generators. Training can resume at any position without reading the examples before it.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from infrastructure.core.integers import ceil_div

Indices = npt.NDArray[np.int64]

# Numbers that separate the random streams of different uses.
ORDER, BALANCE, WINDOW, AUGMENT, SELECT, REPLACE = range(6)


def random_state(use: int, seed: int, *numbers: int) -> np.random.RandomState:
    """Return a random generator whose seed is derived only from these numbers."""
    words = [use]
    for number in (seed, *numbers):
        words += [number & 0xFFFFFFFF, (number >> 32) & 0xFFFFFFFF]
    return np.random.RandomState(words)


def epoch_order(num_examples: int, seed: int, epoch: int) -> Indices:
    """Return the indices of all examples, shuffled for this epoch: int64 (num_examples,)."""
    return random_state(ORDER, seed, epoch).permutation(num_examples).astype(np.int64)


def random_selection(num_examples: int, num_selected: int, seed: int) -> Indices:
    """Return the indices of a uniformly random subset, ascending: int64 (num_selected,)."""
    order = random_state(SELECT, seed).permutation(num_examples)
    return np.sort(order[:num_selected]).astype(np.int64)


def selection_hash(ids: Indices | Sequence[int]) -> str:
    """Return the SHA-256 of the ids of selected examples, taken in ascending order."""
    ascending = np.sort(np.asarray(ids, dtype="<i8"))
    return hashlib.sha256(ascending.tobytes()).hexdigest()


def balanced_order(groups: Sequence[int] | Indices, seed: int, epoch: int) -> Indices:
    """Return the order of an epoch of unchanged length in which each group has the same share.

    Examples of small groups are repeated, within a group equally often (± one). In each epoch,
    different examples of large groups are left out.

    Args:
        groups: the group of each example.
    """
    rng = random_state(BALANCE, seed, epoch)
    groups = np.asarray(groups)
    names = np.unique(groups)
    quotas = np.full(len(names), len(groups) // max(1, len(names)))
    remainder = len(groups) - int(quotas.sum())
    quotas[(np.arange(remainder) + epoch) % max(1, len(names))] += 1
    drawn = [
        _draw(np.flatnonzero(groups == name), int(quota), rng)
        for name, quota in zip(names, quotas, strict=True)
    ]
    everything = np.concatenate(drawn) if drawn else np.zeros(0)
    return rng.permutation(everything).astype(np.int64)


def with_replacements(
    order: Indices, kept: Indices, groups: Sequence[int] | Indices | None, seed: int, epoch: int
) -> Indices:
    """Return the order of an epoch in which examples that are not in `kept` are replaced by kept
    ones.

    A replacement comes from the same group if any example of that group is kept. All kept examples
    stay in place. Within a group, all kept examples are used as replacements equally often (± one).
    """
    rng, filled = random_state(REPLACE, seed, epoch), order.copy()
    is_out = ~np.isin(order, kept)
    group_of = np.zeros(int(order.max(initial=0)) + 1) if groups is None else np.asarray(groups)
    for name in np.unique(group_of[order[is_out]]):
        places = np.flatnonzero(is_out & (group_of[order] == name))
        alike = kept[group_of[kept] == name]
        filled[places] = _draw(alike if len(alike) else kept, len(places), rng)
    return filled


def _draw(members: Indices, quota: int, rng: np.random.RandomState) -> Indices:
    """Draw `quota` of the members, each equally often (± one); `members` must not be empty."""
    rounds = ceil_div(quota, len(members))
    return np.concatenate([rng.permutation(members) for _ in range(rounds)])[:quota]
