"""Measurements for block selection: each block's next update, and its effect on the loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from infrastructure.core.errors import InputError
from infrastructure.features.quantum.training.fisher_labels import SampledLabels
from infrastructure.models.lora import HEAD_LAYER, layer_of
from infrastructure.models.preserve import measuring
from infrastructure.training.core.precision import Precision
from infrastructure.training.forward.gradient_accumulation import backward_of_sum
from infrastructure.training.model_adapters.base_adapter import ModelAdapter

Array = npt.NDArray[np.float64]
Parameters = dict[str, torch.nn.Parameter]


@dataclass(frozen=True)
class BlockStatistics:
    """Statistics of N blocks, for the mean loss per supervised token. A move is a weight update.

    Attributes:
        blocks: names, from the input up.
        linear: gradient times move of each block, (N,).
        gradient_norms: norm of each block's gradient, (N,).
        sampled_dots: (B, N), the gradient of each micro-batch's summed loss, with labels drawn from
            the model, times each move; `sampled_fisher(sampled_dots, num_tokens)` is the curvature.
        num_tokens: supervised tokens in all micro-batches.
    """

    blocks: list[str]
    linear: Array
    gradient_norms: Array
    sampled_dots: Array
    num_tokens: int


def trainable_blocks(model: torch.nn.Module) -> dict[str, Parameters]:
    """Return the trainable parameters by block ("block 0" is the first), from the input up.

    Embeddings, final norm and head do not belong to any block.

    Raises:
        ValueError: the model does not number its blocks, or none of them is trainable.
    """
    blocks: dict[int, Parameters] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and 0 < (layer := layer_of(name)) < HEAD_LAYER:
            blocks.setdefault(layer - 1, {})[name] = parameter
    if not blocks:
        raise InputError("quantum.no_numbered_blocks_train", model=type(model).__name__)
    return {f"block {number}": blocks[number] for number in sorted(blocks)}


def next_moves(
    optimizer: torch.optim.Optimizer, gradients: Mapping[torch.nn.Parameter, torch.Tensor]
) -> dict[torch.nn.Parameter, torch.Tensor]:
    """Predict the next update of each parameter by an Adam-like optimizer, without weight decay.

    The optimizer's moments are used if they are tensors. Otherwise the prediction is a first
    step: minus the learning rate times the gradient's sign. Without betas (SGD) it is minus
    the learning rate times the gradient.
    """
    moves = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in gradients:
                state = optimizer.state.get(parameter, {})
                moves[parameter] = _move(group, state, gradients[parameter].float())
    return moves


def _move(
    group: Mapping[str, Any], state: Mapping[str, torch.Tensor], gradient: torch.Tensor
) -> torch.Tensor:
    if "betas" not in group:
        return -group["lr"] * gradient
    (beta1, beta2), step = group["betas"], 1
    mean, square = torch.zeros_like(gradient), torch.zeros_like(gradient)
    if "exp_avg" in state and "exp_avg_sq" in state:
        step = int(state["step"]) + 1
        mean, square = state["exp_avg"].float(), state["exp_avg_sq"].float()
    mean = (beta1 * mean + (1 - beta1) * gradient) / (1 - beta1**step)
    square = (beta2 * square + (1 - beta2) * gradient**2) / (1 - beta2**step)
    return -group["lr"] * mean / (square.sqrt() + group.get("eps", 1e-8))


def block_statistics(
    model: torch.nn.Module,
    adapter: ModelAdapter,
    batches: Sequence[Sequence[object]],
    optimizer: torch.optim.Optimizer,
    *,
    precision: Precision,
    seed: int = 0,
) -> BlockStatistics:
    """Measure all blocks by two forward and backward passes.

    One pass uses the data's labels, the other pass labels sampled from the model. Afterwards the
    model, its gradients and the random state are as before, bit for bit. The passes need memory for
    a gradient and a move of each parameter of a block.

    Raises:
        ValueError: no numbered block is trainable, no token is supervised, or the model is not a
            language model.
    """
    blocks = trainable_blocks(model)
    relabel = SampledLabels(model, adapter, precision, seed)
    with measuring(model, adapter.device, parameters_have_gradients=True):
        num_tokens = sum(
            backward_of_sum(model, adapter, precision, adapter.prepare_batch(examples)).num_items
            for examples in batches
        )
        if num_tokens == 0:
            raise InputError("quantum.blocks_without_trained_tokens")
        gradients = _taken_gradients(blocks, 1 / num_tokens)
        moves = next_moves(optimizer, gradients)
        dots = []
        for examples in batches:
            model.zero_grad()
            batch = relabel(adapter.prepare_batch(examples))
            backward_of_sum(model, adapter, precision, batch)
            dots.append(_dots(blocks, _taken_gradients(blocks, 1.0), moves))
    norms = [
        sum(float(gradients[p].double().square().sum()) for p in block.values() if p in gradients)
        for block in blocks.values()
    ]
    return BlockStatistics(
        list(blocks),
        _dots(blocks, gradients, moves),
        np.sqrt(np.array(norms)),
        np.array(dots),
        num_tokens,
    )


def _taken_gradients(
    blocks: Mapping[str, Parameters], scale: float
) -> dict[torch.nn.Parameter, torch.Tensor]:
    parameters = [p for block in blocks.values() for p in block.values() if p.grad is not None]
    return {p: p.grad.float() * scale for p in parameters if p.grad is not None}


def _dots(
    blocks: Mapping[str, Parameters],
    gradients: Mapping[torch.nn.Parameter, torch.Tensor],
    moves: Mapping[torch.nn.Parameter, torch.Tensor],
) -> Array:
    """Return the inner product of gradient and update for each block."""
    return np.array(
        [
            sum(
                float((gradients[p].double() * moves[p]).sum())
                for p in block.values()
                if p in gradients and p in moves
            )
            for block in blocks.values()
        ]
    )
