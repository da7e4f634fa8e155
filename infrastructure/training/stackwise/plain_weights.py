"""The weights of a model as it has them at the end of its training, whatever form they have now:
stored quantised, or with low-rank matrices beside them.

Nothing of the model changes. A weight that is plain already is given as it is; of all others one is
made at a time.
"""

from collections.abc import Iterator

import torch

from infrastructure.training.models.saving import TRAINING_ONLY
from infrastructure.training.stackwise.quantized_trunk import (
    QuantizedLinear,
    QuantizedWeight,
    quantized_name,
)

Named = Iterator[tuple[str, torch.Tensor]]


def plain_tensors(
    module: torch.nn.Module, prefix: str = "", leave_out: torch.nn.Module | None = None
) -> Named:
    """Parameters and persistent buffers of the plain model, by name; what is there for training
    only is left out. A tensor that is shared comes under each of its names.

    Args:
        prefix: of the names.
        leave_out: a module inside that is passed over.
    """
    for name, parameter in module.named_parameters(recurse=False):
        yield f"{prefix}{name}", parameter.detach()
    for name, weight in _quantized_weights(module):
        yield f"{prefix}{name}", weight
    for name, buffer in module.named_buffers(recurse=False):
        if name not in module._non_persistent_buffers_set:
            yield f"{prefix}{name}", buffer
    for name, child in module.named_children():
        is_left_out = child is leave_out or name == TRAINING_ONLY
        if not is_left_out and not isinstance(child, QuantizedWeight):
            yield from plain_tensors(child, f"{prefix}{name}.", leave_out)


def _quantized_weights(module: torch.nn.Module) -> Named:
    """Those that lie directly in a module, as they are computed with."""
    if isinstance(module, QuantizedLinear):
        stored = module.quantized_weight
        weight = stored.dequantized(stored.dtype)
        yield "weight", weight.t() if module.is_conv1d else weight
    for name in getattr(module, "quantized_names", ()):  # of experts
        stored = getattr(module, quantized_name(name))
        yield name, stored.dequantized(stored.dtype)
