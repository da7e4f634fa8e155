"""An objective that hides tokens of an example, which the model learns, attending to both sides."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from infrastructure.data.store.examples import TokenizedExample


class HiddenTokens(Protocol):
    """An example as the model sees it, and its targets.

    Attributes:
        input_ids: with the hidden tokens replaced, int32 (n,).
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
    """An objective that hides tokens, as an adapter uses it; `Feature.objective` makes one.

    Attributes:
        corruption: the name of what replaces hidden tokens.
        weighting: "none" if all hidden tokens count the same.
        vocabulary: its `ordinary` are the tokens that may be hidden.
        time_step, draw: set by the strategy.
    """

    corruption: str
    weighting: str
    vocabulary: Any
    time_step: int | None
    draw: int

    def mask(self, example: TokenizedExample, *, held_out: bool = False) -> HiddenTokens:
        """Hide tokens of an example; a held-out one always has the same hidden."""

    def count_items(self, example: TokenizedExample, *, held_out: bool = False) -> int:
        """Return the example's contribution to the divisor of a sum of losses."""
