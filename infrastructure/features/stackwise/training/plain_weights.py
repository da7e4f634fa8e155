"""The weights of a model in their final form, even during training.

During training, weights may be quantized or have low-rank matrices. The model is not changed. A
weight that is already in its final form is yielded directly. All others are computed one at a time.
"""

from collections.abc import Iterator, Mapping

import torch

from infrastructure.features.stackwise.training.quantized_trunk import (
    QuantizedLinear,
    QuantizedWeight,
)
from infrastructure.features.stackwise.training.stack_adapters import (
    LayerAdapters,
    LowRankPair,
    adapted,
    linear_of,
)
from infrastructure.features.stackwise.training.stack_phases import ADAPTERS
from infrastructure.models.saving import TRAINING_ONLY

Named = Iterator[tuple[str, torch.Tensor]]
LEFT_OUT = (TRAINING_ONLY, ADAPTERS)


@torch.no_grad()
def plain_tensors(
    module: torch.nn.Module, prefix: str = "", leave_out: torch.nn.Module | None = None
) -> Named:
    """Yield parameters and persistent buffers of the model in their final form, by name.

    Tensors that are needed only in training are left out. A shared tensor is yielded under each of
    its names.

    Args:
        prefix: prefix of the names.
        leave_out: a module inside `module` that is skipped.
    """
    yield from _tensors(module, prefix, leave_out, {})


def _tensors(
    module: torch.nn.Module,
    prefix: str,
    leave_out: torch.nn.Module | None,
    adapters: Mapping[int, Mapping[str, LowRankPair]],
) -> Named:
    """Yield the tensors of a module as `plain_tensors` does.

    Args:
        adapters: the low-rank pairs of each linear layer, by its `id`.
    """
    if isinstance(beside := getattr(module, ADAPTERS, None), LayerAdapters):
        adapters = {id(linear_of(module, key)): pairs for key, pairs in beside.named_pairs()}
    pairs = adapters.get(id(module), {})
    for name, weight in _own_weights(module):
        yield f"{prefix}{name}", adapted(module, weight, pairs) if name == "weight" else weight
    for name, buffer in module.named_buffers(recurse=False):
        if name not in module._non_persistent_buffers_set:
            yield f"{prefix}{name}", buffer
    for name, child in module.named_children():
        if child is leave_out or name in LEFT_OUT or isinstance(child, QuantizedWeight):
            continue
        yield from _tensors(child, f"{prefix}{name}.", leave_out, adapters)


def _own_weights(module: torch.nn.Module) -> Named:
    """Yield the parameters directly in a module, by name; quantized ones are dequantized."""
    if isinstance(module, QuantizedLinear):
        stored = module.quantized_weight
        weight = stored.dequantized(stored.dtype)
        yield "weight", weight.t() if module.is_conv1d else weight
    for name, parameter in module.named_parameters(recurse=False):
        yield name, parameter.detach()
