"""Initial weights of a stack that begins to train: copies of the stack below.

Method: G_stack, arXiv 2405.15319.
"""

import torch

from infrastructure.core.errors import InputError
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.features.stackwise.training.stack_phases import Unit


@torch.no_grad()
def copy_from_below(rack: Rack, unit: Unit) -> None:
    """Give the layers of a new unit the weights of the trained layers directly below, in order.

    If there are fewer trained layers than layers in the unit, they are repeated.

    Raises:
        ValueError: the layers differ in shape.
    """
    first = max(0, 2 * unit.first - unit.last)
    for index in range(unit.first, unit.last):
        below = rack.layers[first + (index - unit.first) % (unit.first - first)].state_dict()
        own = rack.layers[index].state_dict()
        if {n: t.shape for n, t in own.items()} != {n: t.shape for n, t in below.items()}:
            raise InputError("stackwise.layer_shapes_differ")
        for name, tensor in own.items():
            tensor.copy_(below[name])
