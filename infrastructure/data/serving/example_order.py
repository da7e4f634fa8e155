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
ORDER, WINDOW, AUGMENT, SELECT, REPLACE = 0, 2, 3, 4, 5


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


def with_replacements(order: Indices, kept: Indices, seed: int, epoch: int) -> Indices:
    """Return the order of an epoch in which examples that are not in `kept` are replaced by kept
    ones.

    All kept examples stay in place. All are used as replacements equally often (± one).
    """
    rng, filled = random_state(REPLACE, seed, epoch), order.copy()
    places = np.flatnonzero(~np.isin(order, kept))
    rounds = [rng.permutation(kept) for _ in range(ceil_div(len(places), len(kept)))]
    filled[places] = np.concatenate([kept[:0], *rounds])[: len(places)]
    return filled
