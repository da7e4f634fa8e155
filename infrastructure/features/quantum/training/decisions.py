"""The current decisions of a run's quantum steps.

A problem's `apply` passes its decision to `Decisions`. The extension applies the current decisions
again and again, because loading a checkpoint or starting a phase would undo them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from infrastructure.data.serving.example_order import selection_hash

Ids = npt.NDArray[np.int64]


class Decisions:
    """The latest decision of each kind. It implements `Training`, which problems call.

    Attributes:
        selection: ids of the selected training examples, ascending; None: no selection.
        blocks: names of the trainable blocks; None: all of them.
    """

    def __init__(self) -> None:
        self.selection: Ids | None = None
        self.blocks: frozenset[str] | None = None

    def select_examples(self, ids: Sequence[int] | Ids) -> None:
        """Train only on these examples from the next epoch on."""
        self.selection = np.unique(np.asarray(ids, dtype=np.int64))

    def train_only(self, blocks: Sequence[str]) -> None:
        """Train only these blocks until the next decision."""
        self.blocks = frozenset(blocks)

    @property
    def selection_hash(self) -> str | None:
        """A hash of the selected ids, for display and comparison."""
        return None if self.selection is None else selection_hash(self.selection)

    def state_dict(self) -> dict[str, object]:
        """Return the decisions as JSON values.

        Ids are packed into short texts, because training loops copy them at every step.
        """
        return {
            "selection": None if self.selection is None else packed(self.selection),
            "blocks": None if self.blocks is None else sorted(self.blocks),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the decisions that `state_dict` returned."""
        selection, blocks = saved["selection"], saved["blocks"]
        self.selection = None if selection is None else unpacked(selection)
        self.blocks = None if blocks is None else frozenset(blocks)


def packed(ids: Ids) -> str:
    """Encode ascending numbers from 0 as bits of a hexadecimal text, four numbers per digit."""
    bits = np.zeros(int(ids[-1]) + 1 if len(ids) else 0, dtype=np.bool_)
    bits[ids] = True
    return np.packbits(bits).tobytes().hex()


def unpacked(text: str) -> Ids:
    """Decode the numbers in a text that `packed` returned."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8))
    return np.flatnonzero(bits).astype(np.int64)
