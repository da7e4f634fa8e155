"""Sharding of a model's weights, gradients and optimizer state over all ranks, with FSDP2.

Each block of layers is gathered just before it computes, and freed again afterwards. The parts
outside the blocks (embeddings, last norm, and an output head with tied weights) are gathered once a
step. A separate output head is gathered for the loss, and freed when its gradient is known.

The loss is already divided by the number of items in the whole batch, so gradients are summed over
the ranks in fp32, not averaged. Method:
https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
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
from infrastructure.models.chunked_loss import is_plain_linear
from infrastructure.models.model_inputs import IN_FORWARD
from infrastructure.models.token_loss import output_head
from infrastructure.models.weights_on_disk import WeightOnDisk, taken_out
from infrastructure.training.core.metric_accumulator import MetricAccumulator
from infrastructure.training.core.state import StepOutput
from infrastructure.training.distributed.checkpoint_storage import own_chunk
from infrastructure.training.distributed.group import JoinedGroup
from infrastructure.training.distributed.replicate import shares_of
from infrastructure.training.forward.gradient_accumulation import one_step, split
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.strategies.base_strategy import TrainingStrategy

# Gradients up to this share of the weights, such as those of a LoRA, are kept whole on each rank
# until the last micro-batch instead of being summed after each one.
WHOLE_GRADIENT_SHARE = 1 / 8
# In a smaller model it does not pay off to request a block's memory from the system each time:
# steps of a model with a million weights became a twentieth slower.
SMALL_MODEL_BYTES = 64 * MIB


class Sharding(StrEnum):
    """The ways of sharding a model over the ranks, as values of the setting `training.shard`."""

    SHARD = "yes"
    OFFLOAD = "offload"  # waiting parts are in CPU memory


def shard_model(model: torch.nn.Module, mesh: DeviceMesh, *, offload: bool = False) -> None:
    """Shard `model` over the ranks of `mesh`, in place; all ranks call this together.

    Each weight is split along its first dimension. A rank takes its part from its whole model, or
    reads it from disk if the weights are still there (`weights_on_disk`).

    Args:
        offload: keep shards in CPU memory, where the optimizer also computes.

    Raises:
        ValueError: blocks share a weight with another part of the model.
    """
    wait = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    policy: dict[str, Any] = {
        "mesh": mesh,
        # Autocast sets the compute format, as on one device; this only concerns sums.
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
    """Return whether the allocator must return freed memory to the system instead of keeping it.

    True if the blocks of a large model are repeatedly allocated and freed in CPU memory.
    """
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    return (offload or device_type == "cpu") and num_bytes >= SMALL_MODEL_BYTES


def _hold_no_other_block(module: FSDPModule) -> None:
    """Turn off FSDP's prefetching, to save memory if communication does not overlap computation.

    Otherwise FSDP fetches a block ahead in the backward pass, and keeps the last one it received.
    """
    module.set_modules_to_backward_prefetch([module])  # which is already there
    module._set_unshard_async_op(True)  # waited for at once, which frees what was received


def _read_own_parts(
    model: torch.nn.Module, weights: Mapping[str, WeightOnDisk | torch.Tensor], device_type: str
) -> None:
    """Load this rank's rows of each weight, one weight after the other."""
    buffers = [(m, name, b) for m in model.modules() for name, b in m._buffers.items()]
    model.to_empty(device=device_type)
    for module, name, buffer in buffers:  # which is not sharded
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
    """Return a one-dimensional device mesh of all ranks.

    Its collectives are aborted after the group's time limit if a rank does not join.
    """
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
    """Accumulate gradients of a batch that is divided among all ranks.

    All ranks call this together and run the same number of micro-batches. A rank whose own share
    needs fewer micro-batches also computes an example of another share, with gradients of zero. The
    result is the same as from `accumulate_gradients`.

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
    """Return the layers that compute in sequence: the members of the outermost module lists."""
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
    """Return the modules that FSDP gathers and frees separately, the whole model first."""
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def sum_after_backward(model: torch.nn.Module, is_last: bool) -> None:
    """Set whether gradients are summed over all ranks after the next micro-batch.

    Gradients are always summed after the last micro-batch of a step. After an earlier micro-batch,
    they are summed only if many parameters are trained.
    """
    assert isinstance(model, FSDPModule)
    parameters = list(model.parameters())
    num_trained = sum(p.numel() for p in parameters if p.requires_grad)
    is_small = num_trained <= WHOLE_GRADIENT_SHARE * sum(p.numel() for p in parameters)
    model.set_requires_gradient_sync(is_last or not is_small)


def _compute_inside(module: torch.nn.Module) -> None:
    """Add a method to `module` that runs a function while the module's weights are gathered."""

    def compute_here(compute: Callable[..., object], *arguments: object) -> object:
        return compute(*arguments)

    setattr(module, IN_FORWARD, compute_here)
    register_fsdp_forward_method(module, IN_FORWARD)


def _take_apart_behind(model: torch.nn.Module) -> None:
    """Make the model free all gathered weights after a forward pass without gradients.

    With gradients, the backward pass frees them.
    """

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
    """Return whether a weight of `part` is also used elsewhere in the model."""
    everywhere = _uses(model)
    return any(everywhere[weight] > count for weight, count in _uses(part).items())


def _uses(module: torch.nn.Module) -> Counter[torch.nn.Parameter]:
    """Return how often each parameter occurs in a module."""
    return Counter(weight for _, weight in module.named_parameters(remove_duplicate=False))


def _refuse_shared(model: torch.nn.Module, blocks: list[torch.nn.Module]) -> None:
    if any(_is_shared(model, block) for block in blocks):
        raise InputError("training.layers_share_weights", model=type(model).__name__)
