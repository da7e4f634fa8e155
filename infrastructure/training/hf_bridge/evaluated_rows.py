"""Identification of the rows on which a Trainer evaluates."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from infrastructure.models.preserve import preserve

BATCH_ROWS = 1000
FIRST_ROWS = 16


class EvaluatedRows:
    """A reader of hashes of evaluation datasets, which caches the hash of the latest dataset.

    Args:
        device: the device of the training, whose random state is preserved.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._dataset: object = None
        self._identity: str | None = None

    def identity_of(self, dataset: Any) -> str | None:
        """Return a hash of all rows in order.

        None if that is impossible: for a stream, or for a dataset that returns a different row each
        time.
        """
        if dataset is not None and dataset is not self._dataset:
            with preserve(random=self.device):
                self._identity = _identity_of(dataset)
            self._dataset = dataset
        return self._identity if dataset is not None else None


def _identity_of(dataset: Any) -> str | None:
    try:
        num_rows = len(dataset)
    except TypeError:
        return None
    first = [_spelt(dataset[index]) for index in range(min(FIRST_ROWS, num_rows))]
    if first != [_spelt(dataset[index]) for index in range(len(first))]:
        return None
    digest = hashlib.sha256()
    for text in _texts(dataset, num_rows):
        digest.update(text.encode())
    return digest.hexdigest()


def _texts(dataset: Any, num_rows: int) -> Iterator[str]:
    """Yield all rows as text; a `datasets` table in batches."""
    if hasattr(dataset, "iter"):
        yield from map(_spelt, dataset.iter(BATCH_ROWS))
    else:
        yield from (_spelt(dataset[index]) for index in range(num_rows))


def _spelt(value: object) -> str:
    """Return a row or a value as text. Different content gives different text."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{value.dtype}{value.tolist()}"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key!s}:{_spelt(value[key])}' for key in sorted(value, key=str))}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_spelt, value))}]"
    return repr(value)
