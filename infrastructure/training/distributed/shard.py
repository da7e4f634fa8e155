"""A model whose weights, gradients and optimizer state are spread over all ranks, by FSDP2.

Each block of layers is put together just before it computes, and is taken apart again behind it.
What is around the blocks (embeddings, last norm, and the output head where it shares their
weights) belongs to the whole model: it is put together once a step. An output head of its own is
put together for the loss, and taken apart when its gradient is known.

Losses are sums over the whole batch's items already, so gradients are summed, not averaged, in
fp32. Method: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import InputError
from infrastructure.core.hardware import MIB
from infrastructure.core.integers import ceil_div
from infrastructure.core.process_memory import give_back_large_blocks
from infrastructure.training.core.metric_accumulator import MetricAccumulator
from infrastructure.training.core.state import StepOutput
from infrastructure.training.distributed.checkpoint_storage import own_chunk
from infrastructure.training.distributed.group import JoinedGroup
from infrastructure.training.distributed.replicate import shares_of
from infrastructure.training.forward.gradient_accumulation import split
from infrastructure.training.forward.one_step import one_step
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.models.chunked_loss import is_plain_linear
from infrastructure.training.models.model_inputs import IN_FORWARD
from infrastructure.training.models.token_loss import output_head
from infrastructure.training.models.weights_on_disk import WeightOnDisk, taken_out
from infrastructure.training.strategies.base_strategy import TrainingStrategy

# Gradients that are kept whole on each rank until the last micro-batch, instead of being summed
# after each one: up to this share of the weights, such as those of a LoRA.
WHOLE_GRADIENT_SHARE = 1 / 8
# Of a smaller model no block is worth that it is fetched from the system anew each time, which made
# the steps of one of a million weights a twentieth slower.
SMALL_MODEL_BYTES = 64 * MIB


class Sharding(StrEnum):
    """How a model is spread over the ranks, by the words of `training.shard`."""

    SHARD = "yes"
    OFFLOAD = "offload"  # what waits does so in main memory


def shard_model(model: torch.nn.Module, mesh: DeviceMesh, *, offload: bool = False) -> None:
    """Spread `model` over the ranks of `mesh`, in place; all ranks call it together.

    Each rank keeps its part of each weight, by the first dimension, of the whole model that it has;
    where that lies on the disk (`weights_on_disk`), it reads its part from there.

    Args:
        offload: the parts wait in main memory, where the optimizer computes, too.

    Raises:
        ValueError: blocks share a weight with another part of the model.
    """
    wait = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    policy: dict[str, Any] = {
        "mesh": mesh,
        # Autocast says in which format is computed, as on one device; only sums are said here.
        "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False),
        "offload_policy": wait if offload else OffloadPolicy(),
    }
    blocks = blocks_of(model)
    _refuse_shared(model, blocks)
    if has_blocks_to_give_back(model, mesh.device_type, offload=offload):
        give_back_large_blocks()
    weights = taken_out(model)
    for block in blocks:
        fully_shard(block, **policy)
    head = output_head(model)
    if head is not None and is_plain_linear(head) and not _is_shared(model, head):
        fully_shard(head, reshard_after_forward=False, **policy)
        _compute_inside(head)
    fully_shard(model, **policy)
    _compute_inside(model)
    _take_apart_behind(model)
    for module in sharded_modules(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        if mesh.device_type == "cpu":
            _hold_no_other_block(module)
    if weights:
        _read_own_parts(model, weights, "cpu" if offload else mesh.device_type)


def has_blocks_to_give_back(
    model: torch.nn.Module, device_type: str, *, offload: bool = False
) -> bool:
    """Whether whole blocks come and go in main memory, and are so large that it should not keep the
    memory of those that are gone."""
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    return (offload or device_type == "cpu") and num_bytes >= SMALL_MODEL_BYTES


def _hold_no_other_block(module: FSDPModule) -> None:
    """Where no exchange runs beside the computing, what FSDP does for that costs memory alone: it
    fetches a block ahead in the backward pass, and keeps what was received of the last one."""
    module.set_modules_to_backward_prefetch([module])  # which is there already
    module._set_unshard_async_op(True)  # is waited for at once, and what was received is freed


def _read_own_parts(
    model: torch.nn.Module, weights: Mapping[str, WeightOnDisk | torch.Tensor], device_type: str
) -> None:
    """Give each rank its rows of each weight, one weight after the other."""
    buffers = [(m, name, b) for m in model.modules() for name, b in m._buffers.items()]
    model.to_empty(device=device_type)
    for module, name, buffer in buffers:  # which nobody has taken apart
        module._buffers[name] = buffer
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            assert isinstance(parameter, DTensor)
            own, weight = own_chunk(parameter), weights[name]
            first, count = own.offsets[0], own.sizes[0]
            if isinstance(weight, WeightOnDisk):
                parameter.to_local().copy_(weight.rows(first, count))
            else:
                parameter.to_local().copy_(weight[first : first + count])


def mesh_of(group: JoinedGroup) -> DeviceMesh:
    """All ranks in a row. An exchange in a forward pass that a rank does not come to is given up
    after the group's limit of time."""
    limit = group.limit_seconds
    ranks = dist.new_group(timeout=None if math.isinf(limit) else timedelta(seconds=limit))
    return DeviceMesh.from_group(ranks, group.device.type)


def accumulate_together(
    group: JoinedGroup,
    model: torch.nn.Module,
    adapter: ModelAdapter,
    strategy: TrainingStrategy,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None,
    examples: Sequence[object],
    *,
    micro_batch_size: int,
    total_items: int,
    after_loss: Callable[[StepOutput], None] = do_nothing,
) -> MetricAccumulator:
    """As `accumulate_gradients`, of this rank's share of a batch, all ranks together: as many
    micro-batches on each. A rank that has fewer does an example of another share for nothing.

    Returns:
        Loss and items of all shares.
    """
    share = shares_of(examples, group.size)[group.rank]
    pieces = list(split(share, micro_batch_size))
    count = ceil_div(ceil_div(len(examples), group.size), micro_batch_size)
    window = MetricAccumulator()
    for index in range(count):
        sum_after_backward(model, is_last=index == count - 1)
        counts = index < len(pieces)
        output = one_step(
            model,
            adapter,
            strategy,
            optimizer,
            pieces[index] if counts else examples[:1],
            scaler=scaler,
            total_items=total_items if counts else math.inf,
        )
        group.note_progress()
        if counts:
            window.loss_sum = window.loss_sum + output.loss_sum
            window.num_items += output.num_items
            after_loss(output)
    facts = torch.tensor([0.0, window.num_items], dtype=torch.float64, device=group.device)
    facts[0] = window.loss_sum
    group.sum([facts])
    window.loss_sum, window.num_items = facts[0], int(facts[1])
    return window


def blocks_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers that compute one after the other: members of the outermost lists of modules."""
    blocks: list[torch.nn.Module] = []

    def look(module: torch.nn.Module) -> None:
        for child in module.children():
            if isinstance(child, torch.nn.ModuleList):
                blocks.extend(one for one in child if any(True for _ in one.parameters()))
            else:
                look(child)

    look(model)
    return blocks


def sharded_modules(model: torch.nn.Module) -> Iterator[FSDPModule]:
    """The parts that are put together and taken apart on their own, the whole model first."""
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def sum_after_backward(model: torch.nn.Module, is_last: bool) -> None:
    """Whether the gradients of the micro-batch that comes are summed over all ranks behind it, or
    kept, where they are few, until the last one of the step."""
    assert isinstance(model, FSDPModule)
    parameters = list(model.parameters())
    num_trained = sum(p.numel() for p in parameters if p.requires_grad)
    is_small = num_trained <= WHOLE_GRADIENT_SHARE * sum(p.numel() for p in parameters)
    model.set_requires_gradient_sync(is_last or not is_small)


def _compute_inside(module: torch.nn.Module) -> None:
    """Give the module a way to compute with its weights besides its own forward."""

    def compute_here(compute: Callable[..., object], *arguments: object) -> object:
        return compute(*arguments)

    setattr(module, IN_FORWARD, compute_here)
    register_fsdp_forward_method(module, IN_FORWARD)


def _take_apart_behind(model: torch.nn.Module) -> None:
    """No part stays put together behind a forward pass that no backward one follows, which takes
    apart what a forward one leaves."""

    def take_apart(*_: object) -> None:
        if not torch.is_grad_enabled():
            for module in sharded_modules(model):
                module.reshard()

    inside = getattr(model, IN_FORWARD)

    def compute_here(compute: Callable[..., object], *arguments: object) -> object:
        result = inside(compute, *arguments)
        take_apart()
        return result

    setattr(model, IN_FORWARD, compute_here)
    model.register_forward_hook(take_apart)


def _is_shared(model: torch.nn.Module, part: torch.nn.Module) -> bool:
    """Whether a weight of this part is one of another part, too."""
    everywhere = _uses(model)
    return any(everywhere[weight] > count for weight, count in _uses(part).items())


def _uses(module: torch.nn.Module) -> Counter[torch.nn.Parameter]:
    """How often each weight is found in a module."""
    return Counter(weight for _, weight in module.named_parameters(remove_duplicate=False))


def _refuse_shared(model: torch.nn.Module, blocks: list[torch.nn.Module]) -> None:
    if any(_is_shared(model, block) for block in blocks):
        raise InputError("training.layers_share_weights", model=type(model).__name__)
