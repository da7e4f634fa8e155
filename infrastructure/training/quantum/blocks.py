"""The blocks of a model, and training only some of them."""

import torch

from infrastructure.training.loop import select_trainable
from infrastructure.training.models.lora import HEAD_LAYER, layer_of
from infrastructure.training.state import TrainingState

Blocks = dict[str, list[torch.nn.Parameter]]


def block_name(parameter: str) -> str | None:
    """The block that a parameter belongs to by its name; None for embeddings, head and what lies
    outside of all blocks, which always train."""
    layer = layer_of(parameter)
    return None if layer in (0, HEAD_LAYER) else f"block {layer - 1}"


def trainable_blocks(state: TrainingState) -> Blocks:
    """The blocks that train in this phase where all of them do, from the input up.

    Afterwards all of the phase's parameters collect gradients.
    """
    assert state.optimizer is not None
    select_trainable(state.model, state.phase, state.optimizer)
    found: Blocks = {}
    for name, parameter in state.model.named_parameters():
        block = block_name(name)
        if block is not None and parameter.requires_grad:
            found.setdefault(block, []).append(parameter)
    return dict(sorted(found.items(), key=lambda pair: int(pair[0].split()[1])))


def train_only(state: TrainingState, chosen: frozenset[str] | None) -> None:
    """Let the chosen blocks of this phase train, and what belongs to no block; None: all of them.

    The others have no gradient, and the optimizer forgets what it knew of them: that is the memory
    which choosing saves. Where none of a phase's blocks was chosen, all of them train.
    """
    blocks = trainable_blocks(state)
    if chosen is None or not chosen & blocks.keys():
        return
    assert state.optimizer is not None
    for name, parameters in blocks.items():
        for parameter in parameters if name not in chosen else ():
            parameter.requires_grad_(False)
            parameter.grad = None
            state.optimizer.state.pop(parameter, None)
