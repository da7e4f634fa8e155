"""Computation of the last decoder layer's MLP at only those positions that predict a trained token.

After the last attention, each position is computed separately, and only positions that predict a
trained token affect the loss. So the last MLP gets only these positions. At all other positions its
output is replaced by zeros, which nothing reads. Loss and gradients are the same, except for
rounding.

This is not done if the layer has hooks (such as those of extensions), if dropout would draw other
random numbers, if the layer is recomputed in the backward pass, compiled, sharded or quantized, or
if the MLP does not have Llama's structure. A test decides whether it is correct for a given model.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from infrastructure.models.added_modules import decoder_layers
from infrastructure.models.chunked_loss import with_rows
from infrastructure.models.model_inputs import is_sharded
from infrastructure.optimization.compiling import is_compiled
from infrastructure.optimization.size_grid import SizeGrid

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def last_mlp(model: torch.nn.Module) -> torch.nn.Module | None:
    """Return the last layer's MLP if it may be computed at some positions only, else None."""
    try:
        layer = decoder_layers(model)[-1]
    except ValueError:
        return None
    mlp = getattr(layer, "mlp", None)
    if mlp is None or not all(is_plain(getattr(mlp, name, None)) for name in PROJECTIONS):
        return None
    is_computed_twice = getattr(layer, "gradient_checkpointing", False)
    if is_computed_twice or is_sharded(model) or is_compiled(model):
        return None
    return None if any(is_special(part) for part in (layer, *mlp.modules())) else mlp


def is_plain(projection: object) -> bool:
    """Return whether `projection` is a linear layer, possibly with LoRA."""
    base = getattr(projection, "base_layer", projection)
    return type(base) is torch.nn.Linear and type(base.weight) is torch.nn.Parameter


def is_special(part: torch.nn.Module) -> bool:
    """Return whether a module has hooks or a replaced forward, or draws random numbers."""
    is_watched = any(getattr(part, hooks) for hooks in HOOKS)
    draws = isinstance(part, torch.nn.Dropout) and part.p > 0
    return is_watched or draws or "forward" in vars(part)


def mlp_at(
    mlp: torch.nn.Module | None, positions: torch.Tensor, num_tokens: int, grid: SizeGrid
) -> AbstractContextManager[None]:
    """Return a context in which `mlp` is computed only at `positions`.

    Nothing changes if `positions` is empty or contains every position.

    Args:
        mlp: the result of `last_mlp`. None: nothing changes.
        positions: indices in the flattened batch, (N,) int64, without duplicates.
        num_tokens: tokens of the batch, including padding.
        grid: rounds the number of rows.
    """
    if mlp is None or not 0 < grid.rows_up(len(positions)) < num_tokens:
        return nullcontext()
    return _computing_at(mlp, positions, grid.rows_up(len(positions)))


@contextmanager
def _computing_at(mlp: torch.nn.Module, positions: torch.Tensor, num_rows: int) -> Iterator[None]:
    shapes: list[torch.Size] = []

    def pick(_mlp: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        (hidden,) = inputs
        shapes.append(hidden.shape)
        picked = hidden.flatten(0, 1).index_select(0, positions)
        return (with_rows(picked, num_rows)[None],)

    def put(_mlp: torch.nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        shape = shapes.pop()
        whole = output.new_zeros(shape[0] * shape[1], output.shape[-1])
        whole = whole.index_copy(0, positions, output[0, : len(positions)])
        return whole.view(*shape[:2], -1)

    handles = [mlp.register_forward_pre_hook(pick), mlp.register_forward_hook(put)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
