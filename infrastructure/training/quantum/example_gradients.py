"""The gradient of each example on its own, sketched, for the cost of one forward and backward pass.

The gradient of a linear layer's weight is a sum over tokens of (gradient of its output) times (its
input), so the tokens of each example, summed apart, give each example's gradient. Rows may be
padded or packed. Memory: activations as in training, the sketches, and a byte per watched weight.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from infrastructure.training.error_handlers import can_be_halved, free_memory, let_go
from infrastructure.training.model_adapters.base_adapter import Batch, ModelAdapter
from infrastructure.training.models.lora import HEAD_LAYER, layer_of
from infrastructure.training.precision import Precision
from infrastructure.training.quantum.sketch import CountSketch
from infrastructure.training.quantum.taps import check_heard, measuring, tapped

NUM_FEATURES = 4096  # 512 are too few: noise of 0.04 where the signal is 0.09 (measured)
LORA = ".lora_"


def watched_layers(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The linear layers whose gradients stand for an example's, by name.

    All of LoRA's matrices that train; without LoRA, the linear layers that train in the last block
    (in all blocks where a model does not number them), never the output layer.

    Raises:
        ValueError: no such layer trains.
    """
    output = getattr(model, "get_output_embeddings", lambda: None)()
    linear = {name: m for name, m in model.named_modules() if _trains(m) and m is not output}
    lora = {name: module for name, module in linear.items() if LORA in f".{name}"}
    if lora:
        return lora
    if not linear:
        raise ValueError(f"no linear layer of {type(model).__name__} trains: nothing to select by")
    blocks = {name: layer_of(f"{name}.weight") for name in linear}
    last = max((block for block in blocks.values() if block != HEAD_LAYER), default=HEAD_LAYER)
    return {name: module for name, module in linear.items() if blocks[name] == last}


def example_gradients(
    model: torch.nn.Module,
    adapter: ModelAdapter,
    batches: Iterable[Sequence[Any]],
    *,
    precision: Precision,
    num_features: int = NUM_FEATURES,
    seed: int = 0,
) -> npt.NDArray[np.float32]:
    """Sketched gradients of the examples' losses, (n, num_features), in the order of `batches`.

    The model is afterwards what it was, bit for bit; so is the random state. A batch that does not
    fit into memory is done in halves. An example that has no supervised token has gradient zero.

    Args:
        batches: as a data source gives them; of similar lengths, so that little is padded.
        seed: of the sketch: sketches of different seeds have nothing to do with each other.

    Raises:
        ValueError: nothing suitable trains, or the adapter does not keep examples apart.
        TemperError: the model computes a watched layer in a kernel of its own.
    """
    layers = watched_layers(model)
    sketch = CountSketch(num_features, seed, adapter.device)
    numbers = {name: number for number, name in enumerate(layers)}
    measured = _Measured(model, adapter, precision, sketch, numbers)
    with measuring(model, adapter.device), tapped(layers, measured.add) as heard:
        rows = [piece for examples in batches for piece in measured.rows_of(examples)]
        if rows:
            check_heard(heard, layers)
    return np.concatenate(rows) if rows else np.zeros((0, num_features), dtype=np.float32)


@dataclass
class _Measured:
    model: torch.nn.Module
    adapter: ModelAdapter
    precision: Precision
    sketch: CountSketch
    numbers: dict[str, int]  # of the layers
    ends: list[int] | None = None  # of the examples in a packed row
    total: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    def rows_of(self, examples: Sequence[Any]) -> Iterator[npt.NDArray[np.float32]]:
        """The sketches of one batch, in pieces that fit into memory."""
        waiting = [examples]
        while waiting:
            piece = waiting.pop()
            rows = self._tried(piece)
            if rows is not None:
                yield rows
                continue
            free_memory(self.adapter.device)
            waiting += [piece[len(piece) // 2 :], piece[: len(piece) // 2]]

    def _tried(self, examples: Sequence[Any]) -> npt.NDArray[np.float32] | None:
        try:
            return self._rows_of_piece(examples)
        except Exception as error:
            if not can_be_halved(error, len(examples), len(examples)):
                raise
            let_go(error)
            return None

    def _rows_of_piece(self, examples: Sequence[Any]) -> npt.NDArray[np.float32]:
        batch = self.adapter.prepare_batch(examples)
        self.ends = packed_ends(batch)
        shape = (len(examples), self.sketch.num_features)
        self.total = torch.zeros(shape, device=self.adapter.device)
        with self.precision.autocast():
            output = self.adapter.compute_loss(self.model, batch)
        if output.num_items:
            output.loss_sum.backward()  # type: ignore[no-untyped-call]
        return self.total.cpu().numpy()

    def add(self, name: str, inputs: torch.Tensor, gradient: torch.Tensor) -> None:
        """What one layer was given and the gradient of what it gave: (B, L, in), (B, L, out)."""
        inputs, gradient = inputs.float(), gradient.float()
        rows_at_once = self.sketch.rows_at_once(inputs.shape[-1])
        for start in range(0, gradient.shape[-1], rows_at_once):
            part = gradient[..., start : start + rows_at_once]
            chunk = products_by_example(part, inputs, len(self.total), self.ends)
            self.sketch.add(self.total, chunk, self.numbers[name], start)


def packed_ends(batch: Batch) -> list[int] | None:
    """Where the examples of a packed row end; None for padded rows."""
    boundaries = batch.get("cu_seq_lens")
    return None if boundaries is None else boundaries[1:].tolist()


def products_by_example(
    left: torch.Tensor, right: torch.Tensor, num_examples: int, ends: list[int] | None
) -> torch.Tensor:
    """Sum over each example's tokens of left times right: (B, L, p), (B, L, q) to (B, p, q).

    Raises:
        ValueError: tokens are not in the order of the examples.
    """
    rows, tokens = (left.shape[0], left.shape[1]) if left.dim() == 3 else (-1, -1)
    if ends is None and rows == num_examples:
        return left.transpose(1, 2) @ right
    if ends is not None and rows == 1 and tokens >= ends[-1]:
        starts = [0, *ends[:-1]]
        both = zip(starts, ends, strict=True)
        return torch.stack([left[0, s:e].T @ right[0, s:e] for s, e in both])
    raise ValueError(
        f"a layer sees its input as {tuple(left.shape)}, not as {num_examples} examples of tokens:"
        " their gradients cannot be told apart (so it is with experts and with what plays episodes)"
    )


def _trains(module: torch.nn.Module) -> bool:
    is_linear = isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"
    return is_linear and bool(module.weight.requires_grad)  # type: ignore[union-attr]
