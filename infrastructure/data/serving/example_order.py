"""The order of examples: a pure function of (seed, epoch), the same on every machine.

`numpy.random.RandomState` is used on purpose: its stream is frozen, unlike that of newer
generators. Training can resume at any position without reading the examples before it.
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
    """Return a generator that depends only on these numbers."""
    words = [use]
    for number in (seed, *numbers):
        words += [number & 0xFFFFFFFF, (number >> 32) & 0xFFFFFFFF]
    return np.random.RandomState(words)


def epoch_order(num_examples: int, seed: int, epoch: int) -> Indices:
    """Return the examples of an epoch, each once, shuffled: int64 (num_examples,)."""
    return random_state(ORDER, seed, epoch).permutation(num_examples).astype(np.int64)


def random_selection(num_examples: int, num_selected: int, seed: int) -> Indices:
    """Return some of the examples, ascending, all equally likely: int64 (num_selected,)."""
    order = random_state(SELECT, seed).permutation(num_examples)
    return np.sort(order[:num_selected]).astype(np.int64)


def selection_hash(ids: Indices | Sequence[int]) -> str:
    """Return a name for a set of examples: the SHA-256 of their numbers in ascending order."""
    ascending = np.sort(np.asarray(ids, dtype="<i8"))
    return hashlib.sha256(ascending.tobytes()).hexdigest()


def balanced_order(groups: Sequence[int] | Indices, seed: int, epoch: int) -> Indices:
    """Return as many examples as there are, drawn so that each group has the same share.

    Examples of a small group repeat, each as often as the others of its group (± one). Of a large
    group, different examples are left out in each epoch.

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
    """Return an epoch in which examples that are not kept are replaced by kept ones.

    Replacements are of the same group if it has any that are kept; all other examples stay in
    place. Within a group, each kept one is used as a replacement as often as any other (± one).
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
    """Draw `quota` members, each as often as any other (± one); `members` must not be empty."""
    rounds = ceil_div(quota, len(members))
    return np.concatenate([rng.permutation(members) for _ in range(rounds)])[:quota]
