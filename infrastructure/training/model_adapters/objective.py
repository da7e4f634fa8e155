"""Interface of training objectives that hide tokens, which the model predicts from both sides."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from infrastructure.data.store.examples import TokenizedExample


class HiddenTokens(Protocol):
    """An example with some tokens hidden, and the hidden tokens as targets.

    Attributes:
        input_ids: token IDs with the hidden ones replaced, int32 (n,).
        positions: positions of the hidden tokens, ascending, int64 (k,).
        targets: the original tokens at these positions, int64 (k,).
        weight: weight of the loss of each hidden token.
    """

    @property
    def input_ids(self) -> npt.NDArray[np.int32]: ...

    @property
    def positions(self) -> npt.NDArray[np.int64]: ...

    @property
    def targets(self) -> npt.NDArray[np.int64]: ...

    @property
    def weight(self) -> float: ...


class Objective(Protocol):
    """An objective that hides tokens for the model to predict; `Feature.objective` creates it.

    Attributes:
        corruption: the name of what replaces hidden tokens.
        weighting: "none" if all hidden tokens have the same weight.
        vocabulary: its `ordinary` are the tokens that may be hidden.
        time_step, draw: set by the strategy.
    """

    corruption: str
    weighting: str
    vocabulary: Any
    time_step: int | None
    draw: int

    def mask(self, example: TokenizedExample, *, held_out: bool = False) -> HiddenTokens:
        """Hide tokens of an example; in a held-out example, always the same tokens."""

    def count_items(self, example: TokenizedExample, *, held_out: bool = False) -> int:
        """Return the example's number of items. The loss is divided by the sum of these numbers."""
