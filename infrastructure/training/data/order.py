"""In which order examples come: a pure function of (seed, epoch), the same on every machine.

`numpy.random.RandomState` is used on purpose: its stream is frozen, the newer generators' is not.
Training goes on at any position without looking at an example before it.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

ORDER, BALANCE, WINDOW, AUGMENT, SELECT = range(5)  # keep the streams of different uses apart


def random_state(use: int, seed: int, *numbers: int) -> np.random.RandomState:
    """A generator that depends on these numbers alone."""
    words = [use]
    for number in (seed, *numbers):
        words += [number & 0xFFFFFFFF, (number >> 32) & 0xFFFFFFFF]
    return np.random.RandomState(words)


def epoch_order(num_examples: int, seed: int, epoch: int, num_drawn: int | None = None) -> Indices:
    """The examples of an epoch, shuffled: int64 (num_drawn,).

    Args:
        num_drawn: None: each once. More than there are: each as often as the others (± one).
    """
    rng = random_state(ORDER, seed, epoch)
    everything = np.arange(num_examples)
    if num_drawn is not None and num_drawn != num_examples:
        everything = _draw(everything, num_drawn, rng)
    return rng.permutation(everything).astype(np.int64)


def random_selection(num_examples: int, num_selected: int, seed: int) -> Indices:
    """Some of the examples, ascending, each as likely as any other: int64 (num_selected,)."""
    order = random_state(SELECT, seed).permutation(num_examples)
    return np.sort(order[:num_selected]).astype(np.int64)


def selection_hash(ids: Indices | Sequence[int]) -> str:
    """A name for a set of examples: SHA-256 of their numbers in ascending order."""
    ascending = np.sort(np.asarray(ids, dtype="<i8"))
    return hashlib.sha256(ascending.tobytes()).hexdigest()


def balanced_order(
    groups: Sequence[int] | Indices, seed: int, epoch: int, num_drawn: int | None = None
) -> Indices:
    """As many examples as there are, drawn so that each group has the same share.

    A small group's examples come again, each as often as the others of its group (± one); of a
    large group other ones are left out in each epoch.

    Args:
        groups: the group of each example.
        num_drawn: another number than there are.
    """
    rng = random_state(BALANCE, seed, epoch)
    groups = np.asarray(groups)
    names = np.unique(groups)
    total = len(groups) if num_drawn is None else num_drawn
    quotas = np.full(len(names), total // max(1, len(names)))
    remainder = total - int(quotas.sum())
    quotas[(np.arange(remainder) + epoch) % max(1, len(names))] += 1
    drawn = [
        _draw(np.flatnonzero(groups == name), int(quota), rng)
        for name, quota in zip(names, quotas, strict=True)
    ]
    everything = np.concatenate(drawn) if drawn else np.zeros(0)
    return rng.permutation(everything).astype(np.int64)


def _draw(members: Indices, quota: int, rng: np.random.RandomState) -> Indices:
    rounds = -(-quota // len(members))
    return np.concatenate([rng.permutation(members) for _ in range(max(1, rounds))])[:quota]
