"""What the quantum steps so far have decided for a training, and what that changes in it.

A problem's `apply` tells `Decisions`; the extension carries out what holds now, again and again:
what a checkpoint brings back, or a phase switches on, must not undo it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from infrastructure.training.data.serving.example_order import selection_hash

Ids = npt.NDArray[np.int64]


class Decisions:
    """The newest decision of each kind; a `Training` as problems know it.

    Attributes:
        selection: ids of the training examples, ascending; None: none were selected.
        blocks: names of the blocks that train; None: all of them.
        kept: of each LoRA module, the components of its rank that stay; empty: all of them.
    """

    def __init__(self) -> None:
        self.selection: Ids | None = None
        self.blocks: frozenset[str] | None = None
        self.kept: dict[str, tuple[int, ...]] = {}

    def select_examples(self, ids: Sequence[int] | Ids) -> None:
        """Train on these examples from the next epoch on."""
        self.selection = np.unique(np.asarray(ids, dtype=np.int64))

    def train_only(self, blocks: Sequence[str]) -> None:
        """Only these blocks train until the next decision."""
        self.blocks = frozenset(blocks)

    def keep_components(self, kept: Mapping[str, Sequence[int]]) -> None:
        """Of each LoRA module named, only these components stay."""
        self.kept = {name: tuple(components) for name, components in kept.items()}

    @property
    def selection_hash(self) -> str | None:
        """A name for the selection, for people and for comparing."""
        return None if self.selection is None else selection_hash(self.selection)

    def state_dict(self) -> dict[str, object]:
        """As JSON values; short texts, since loops copy it at every step."""
        return {
            "selection": None if self.selection is None else packed(self.selection),
            "blocks": None if self.blocks is None else sorted(self.blocks),
            "kept": {name: list(components) for name, components in self.kept.items()},
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        selection, blocks = saved["selection"], saved["blocks"]
        self.selection = None if selection is None else unpacked(selection)
        self.blocks = None if blocks is None else frozenset(blocks)
        self.keep_components(saved["kept"])


def packed(ids: Ids) -> str:
    """Ascending numbers from 0 on as the bits of a hexadecimal text: a quarter of a letter each."""
    bits = np.zeros(int(ids[-1]) + 1 if len(ids) else 0, dtype=np.bool_)
    bits[ids] = True
    return np.packbits(bits).tobytes().hex()


def unpacked(text: str) -> Ids:
    """The numbers that `packed` wrote."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8))
    return np.flatnonzero(bits).astype(np.int64)
