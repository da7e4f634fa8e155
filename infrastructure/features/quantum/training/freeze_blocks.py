"""The blocks of a model, and training of only some of them."""

import torch

from infrastructure.models.lora import HEAD_LAYER, layer_of
from infrastructure.training.core.state import TrainingState
from infrastructure.training.loop.loop import select_trainable

Blocks = dict[str, list[torch.nn.Parameter]]


def block_name(parameter: str) -> str | None:
    """Return the name of the block that contains a parameter.

    None means that the parameter is outside of all blocks (embeddings, head and others) and always
    trains.
    """
    layer = layer_of(parameter)
    return None if layer in (0, HEAD_LAYER) else f"block {layer - 1}"


def phase_blocks(state: TrainingState) -> Blocks:
    """Return the parameters of each block that can train in this phase, from the input up."""
    assert state.optimizer is not None
    known = {id(p) for group in state.optimizer.param_groups for p in group["params"]}
    wanted = state.phase.parameters
    blocks: Blocks = {}
    for name, parameter in state.model.named_parameters():
        block = block_name(name)
        in_phase = id(parameter) in known and (wanted is None or name in wanted)
        if block is not None and in_phase:
            blocks.setdefault(block, []).append(parameter)
    return dict(sorted(blocks.items(), key=lambda pair: int(pair[0].split()[1])))


def train_only(state: TrainingState, chosen: frozenset[str] | None) -> None:
    """Train only the chosen blocks, and the parameters outside of blocks.

    The other blocks get no gradient. All blocks train if `chosen` is None, or names no block of
    this phase.
    """
    assert state.optimizer is not None
    select_trainable(state.model, state.phase, state.optimizer)
    for parameter in _left_out(state, chosen):
        parameter.requires_grad_(False)
        parameter.grad = None


def forget_optimizer_moments(state: TrainingState, chosen: frozenset[str] | None) -> None:
    """Drop the optimizer state of blocks that were not chosen, to free memory."""
    assert state.optimizer is not None
    for parameter in _left_out(state, chosen):
        state.optimizer.state.pop(parameter, None)


def _left_out(state: TrainingState, chosen: frozenset[str] | None) -> list[torch.nn.Parameter]:
    """Return the parameters of those blocks of this phase that were not chosen."""
    if chosen is None:
        return []
    blocks = phase_blocks(state)
    if not chosen & blocks.keys():
        return []
    return [p for name, parameters in blocks.items() if name not in chosen for p in parameters]
