"""A cache of activations that somebody adds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from infrastructure.features.stackwise.training.activation_cache import Compute, Pages


class MemoryCache:
    """Values in a dictionary."""

    made = 0

    def __init__(self, directory: Path, key: Any, pages: Pages, **options: Any) -> None:
        self.pages, self.values, self.dtype = pages, {}, options["dtype"]
        type(self).made += 1

    def build(self, compute: Compute) -> None:
        for number in range(len(self.pages)):
            values = compute(self.pages.examples(number))
            self.values.update(zip(self.pages.ids(number), values, strict=True))

    def read(self, ids: Sequence[bytes]) -> list[torch.Tensor] | None:
        return [self.values[i] for i in ids] if set(ids) <= self.values.keys() else None

    def discard(self) -> None:
        self.values.clear()
