"""Initialization of a stack of layers before it trains.

`zero` keeps the model's function: a layer adds nothing to its input at first (MSG, 2305.02869).
`copy` copies the stack below (G_stack, 2405.15319). `middle` copies the middle of the trained
layers, and inserts the copies between them (MIDAS, 2409.19044).
"""

import re
from collections.abc import Sequence

import torch

from infrastructure.core.errors import InputError
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.features.stackwise.training.stack_phases import Unit

_NUMBER = re.compile(r"\d+")


@torch.no_grad()
def initialize_unit(rack: Rack, unit: Unit, init: str) -> None:
    """Initialize the layers of a new unit, which lies above trained layers.

    Args:
        init: keep, zero, copy or middle.

    Raises:
        ValueError: the layers differ in shape and cannot be copied, or a layer cannot be made to
            return its input.
    """
    if unit.first == 0 or init == "keep":
        return
    if init == "zero":
        for index in range(unit.first, unit.last):
            silence(rack, index)
    elif init == "copy":
        for index, layer in enumerate(rack.layers[unit.first : unit.last]):
            _load(layer, rack.layers[_below(unit, index)].state_dict())
    else:
        insert_in_the_middle(list(rack.layers), unit)


def _below(unit: Unit, index: int) -> int:
    """Return the index of the trained layer that new layer `index` (from 0) is a copy of.

    The layers directly below are copied in their order, and repeated if there are too few.
    """
    first = max(0, 2 * unit.first - unit.last)
    return first + index % (unit.first - first)


def insert_in_the_middle(layers: Sequence[torch.nn.Module], unit: Unit) -> None:
    """Move the upper half of the trained layers up, and fill the gap with copies of the middle."""
    num_old, num_new = unit.first, unit.last - unit.first
    states = [
        {name: tensor.clone() for name, tensor in layer.state_dict().items()}
        for layer in layers[:num_old]
    ]
    half, width = (num_old + 1) // 2, min(num_new, num_old)
    start = min(max(0, half - (width + 1) // 2), num_old - width)
    middle = [states[start + index % width] for index in range(num_new)]
    wanted = [*states[:half], *middle, *states[half:]]
    for layer, state in zip(layers[: unit.last], wanted, strict=True):
        _load(layer, state)


def _load(layer: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    own = layer.state_dict()
    if {n: t.shape for n, t in own.items()} != {n: t.shape for n, t in state.items()}:
        raise InputError("stackwise.layer_shapes_differ")
    for name, tensor in own.items():
        tensor.copy_(state[name])


def silence(rack: Rack, index: int) -> None:
    """Make a layer return its input, by setting as few of its matrices to zero as possible.

    The zeros are in the last matrices of its branches, so after one step, all other matrices get
    gradients. They are found by trial: all matrices are set to zero, then restored one at a time,
    in order, if the layer still returns its input. Experts are treated together.

    Raises:
        ValueError: the layer changes its input even with all matrices at zero.
    """
    layer = rack.layers[index]
    groups: dict[str, list[torch.Tensor]] = {}
    for name, module in layer.named_modules():
        own = list(module.parameters(recurse=False))
        if any(p.ndim >= 2 for p in own):
            for key, parameter in module.named_parameters(recurse=False):
                kind = _NUMBER.sub("*", name) + ("" if _is_linear(own) else f".{key}")
                groups.setdefault(kind, []).append(parameter)
    kept = {name: [p.clone() for p in group] for name, group in groups.items()}
    for group in groups.values():
        _zero(group)
    if not rack.is_silent(index):
        raise InputError("stackwise.layer_cannot_be_silenced", layer=index + 1)
    for name, group in groups.items():
        for parameter, value in zip(group, kept[name], strict=True):
            parameter.copy_(value)
        if not rack.is_silent(index):
            _zero(group)


def _is_linear(own: Sequence[torch.Tensor]) -> bool:
    return sum(p.ndim >= 2 for p in own) == 1


def _zero(group: Sequence[torch.Tensor]) -> None:
    for parameter in group:
        parameter.zero_()
