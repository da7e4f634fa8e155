"""A forward and backward pass that sums values separately for each example.

Rows may be padded or packed. A batch that does not fit into memory is processed in halves.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from infrastructure.core.errors import InputError
from infrastructure.features.quantum.training.activation_hooks import check_heard, gradient_hooks
from infrastructure.models.preserve import measuring
from infrastructure.optimization.device_errors import (
    can_be_halved,
    free_memory,
    release_traceback,
)
from infrastructure.training.core.precision import Precision
from infrastructure.training.forward.gradient_accumulation import backward_of_sum
from infrastructure.training.model_adapters.base_adapter import ModelAdapter


@dataclass(frozen=True)
class Split:
    """The positions of each example's tokens: one example per row, or all in a packed row."""

    num_examples: int
    ends: list[int] | None

    def products(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Sum left times right over each example's tokens: (B, L, p), (B, L, q) to (B, p, q).

        Raises:
            ValueError: the tensors are not divided into examples.
        """
        if self._is_padded(left):
            return left.transpose(1, 2) @ right
        assert self.ends is not None
        pieces = zip([0, *self.ends[:-1]], self.ends, strict=True)
        return torch.stack([left[0, s:e].T @ right[0, s:e] for s, e in pieces])

    def _is_padded(self, values: torch.Tensor) -> bool:
        if values.dim() == 3:
            if self.ends is None and len(values) == self.num_examples:
                return True
            if self.ends is not None and len(values) == 1 and values.shape[1] >= self.ends[-1]:
                return False
        raise InputError(
            "quantum.examples_not_separable",
            shape=tuple(values.shape),
            count=self.num_examples,
        )


# Adds to the examples' rows (B, columns). Arguments: rows, the module's name, its input, the
# gradient of its output, and the positions of the examples in them.
Add = Callable[[torch.Tensor, str, torch.Tensor, torch.Tensor, Split], None]


@dataclass
class ExamplePass:
    """A pass that sums values for each example from the gradients of `modules`.

    Afterwards the model and the random state are as before, bit for bit.

    Attributes:
        num_columns: values per example.
        add: adds the values of one module.
    """

    model: torch.nn.Module
    adapter: ModelAdapter
    precision: Precision
    modules: Mapping[str, torch.nn.Module]
    num_columns: int
    add: Add

    def rows(self, batches: Iterable[Sequence[object]]) -> npt.NDArray[np.float32]:
        """Return the sums for each example, (n, num_columns), in the order of `batches`.

        Raises:
            ValueError: the adapter does not keep examples separate.
            TemperError: the forward of a module was not called.
        """
        with (
            measuring(self.model, self.adapter.device),
            gradient_hooks(self.modules, self._receive) as heard,
        ):
            rows = [piece for examples in batches for piece in self._in_pieces(examples)]
            if rows:
                check_heard(heard, self.modules)
        return np.concatenate(rows) if rows else np.zeros((0, self.num_columns), np.float32)

    def _receive(self, name: str, kept: torch.Tensor, gradient: torch.Tensor) -> None:
        self.add(self._total, name, kept.float(), gradient.float(), self._split)

    def _in_pieces(self, examples: Sequence[object]) -> Iterator[npt.NDArray[np.float32]]:
        waiting = [examples]
        while waiting:
            piece = waiting.pop()
            rows = self._tried(piece)
            if rows is not None:
                yield rows
                continue
            free_memory(self.adapter.device)
            waiting += [piece[len(piece) // 2 :], piece[: len(piece) // 2]]

    def _tried(self, examples: Sequence[object]) -> npt.NDArray[np.float32] | None:
        try:
            return self._of_piece(examples)
        except Exception as error:
            if not can_be_halved(error, len(examples), len(examples)):
                raise
            release_traceback(error)
            return None

    def _of_piece(self, examples: Sequence[object]) -> npt.NDArray[np.float32]:
        batch = self.adapter.prepare_batch(examples)
        boundaries = batch.get("cu_seq_lens")
        ends = None if boundaries is None else boundaries[1 : len(examples) + 1].tolist()
        self._split = Split(len(examples), ends)
        shape = (len(examples), self.num_columns)
        self._total = torch.zeros(shape, device=self.adapter.device)
        backward_of_sum(self.model, self.adapter, self.precision, batch)
        return self._total.cpu().numpy()
