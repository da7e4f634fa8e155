"""Prediction of the memory and time of one rank for a model that will be sharded.

Persistent memory (weights, gradients, optimizer state) is counted and divided by the number of
ranks. The memory of a micro-batch is measured by forward passes of the whole model, which keep the
activations for backward passes but compute no gradients. The time of the communication between
ranks is not predicted.
"""

import time
from dataclasses import dataclass, replace

import torch

from infrastructure.core.integers import ceil_div
from infrastructure.core.process_memory import give_back_large_blocks
from infrastructure.models.weights_on_disk import lies_in
from infrastructure.optimization.memory_prediction import MemoryPoint, fit_line
from infrastructure.optimization.optimizer_memory import CreateOptimizer, optimizer_state_bytes
from infrastructure.optimization.peak_memory import PeakMemory, peak_memory
from infrastructure.training.checkpoints.checkpoint_manager import BACKGROUND_BYTES
from infrastructure.training.distributed.checkpoint_storage import is_gathered
from infrastructure.training.distributed.shard import blocks_of, has_blocks_to_give_back
from infrastructure.training.sizing.batch_plan import BatchPlan
from infrastructure.training.sizing.cost_measurement import (
    SAVING_BYTES,
    CostMeasurement,
    StepCosts,
    dry_run,
)

BACKWARD_SECONDS = 2.0  # relative to a forward pass


@dataclass(frozen=True)
class SpreadState:
    """The memory that a sharded model takes, in bytes.

    Attributes:
        whole_bytes: weights, gradients and optimizer state of all ranks together.
        part_bytes: the part of that memory that one rank keeps on its device.
        together_bytes: the most weights and gradients that are gathered at the same time during
            computation.
    """

    whole_bytes: int
    part_bytes: int
    together_bytes: int


def spread_state(
    model: torch.nn.Module,
    create_optimizer: CreateOptimizer,
    num_ranks: int,
    *,
    offload: bool,
    on_gpu: bool,
) -> SpreadState:
    """Return the memory that a sharded model takes on one rank.

    Embeddings, last norm and head are gathered for a whole micro-batch. A block of layers takes
    memory twice, for the received data and for the weights to compute with. With gloo on a CPU,
    received data is copied once more. A GPU prefetches: in the forward pass it also holds what was
    received of the last block, and in the backward pass the gradients of two blocks. Gradients are
    whole until they are summed, and exist once more in the send buffer.
    """
    weights, gradients = _bytes(model), _bytes(model, trained=True)
    blocks = blocks_of(model)
    inside = {id(parameter) for block in blocks for parameter in block.parameters()}
    around = [p for p in model.parameters() if id(p) not in inside]
    largest = max((_bytes(block) for block in blocks), default=0)
    largest_gradient = max((_bytes(block, trained=True) for block in blocks), default=0)
    whole = weights + gradients + optimizer_state_bytes(create_optimizer, model)
    trained_around = sum(_size(p) for p in around if p.requires_grad)
    largest_around = max(map(_size, around), default=0)
    if on_gpu:
        computing = 2 * largest + max(largest, 2 * largest_gradient)
        before = largest_around + largest
    else:
        computing, before = 2 * largest + largest_gradient, 2 * largest_around
    waits_elsewhere = offload and on_gpu
    return SpreadState(
        whole_bytes=whole,
        part_bytes=0 if waits_elsewhere else ceil_div(whole, num_ranks),
        together_bytes=sum(map(_size, around)) + max(trained_around + computing, before),
    )


def spread_costs(
    measurement: CostMeasurement, plan: BatchPlan, num_ranks: int, *, offload: bool
) -> StepCosts:
    """Predict the costs of a planned run's steps on each rank.

    On a CPU, all ranks share the memory of one machine.

    Args:
        plan: the batch plan of all ranks together.
    """
    device, model = measurement.adapter.device, measurement.model
    state = spread_state(
        model,
        lambda samples: measurement.strategy.create_optimizer(samples, 0.0),
        num_ranks,
        offload=offload,
        on_gpu=device.type == "cuda",
    )
    own = plan.of_one_process(num_ranks)
    size = min(own.micro_batch_size, len(measurement.usual))
    points, seconds = [], 0.0
    if has_blocks_to_give_back(model, device.type):  # as it will be when the model is sharded
        give_back_large_blocks()
    with dry_run(model, device):
        _forward(measurement, 1)  # this loads what is read from the disk lazily
        idle = PeakMemory(device).now()
        for count in dict.fromkeys((1, ceil_div(size, 2), size)):
            with peak_memory(device) as peak:
                started = time.perf_counter()
                _forward(measurement, count)
                seconds = time.perf_counter() - started  # of the last one, which is a whole one
                size_bytes = max(0, peak.read() - idle)
            points.append(MemoryPoint(measurement.units(measurement.usual[:count]), size_bytes))
    line = fit_line(points[-2:], 0)
    lies_here = 0 if any(map(lies_in, model.parameters())) else _bytes(model)
    fixed = idle - lies_here + state.part_bytes + state.together_bytes
    shared = num_ranks if device.type == "cpu" else 1
    return StepCosts(
        memory=replace(line, fixed_bytes=line.fixed_bytes + fixed),
        heaviest_units=measurement.heaviest_units(own.micro_batch_size),
        longest_units=measurement.units(measurement.longest(1)),
        copy_bytes=_copy_bytes(model, state) if device.type == "cpu" else 0,
        step_seconds=own.gradient_accumulation * seconds * (1 + BACKWARD_SECONDS) * shared,
        evaluation_seconds=seconds / size * shared,  # all ranks evaluate all examples
        limit_bytes=measurement.budget.limit_bytes(device, num_ranks),
    )


def _copy_bytes(model: torch.nn.Module, state: SpreadState) -> int:
    """Return the bytes that rank 0 needs for a copy of the gathered state while writing it.

    Only a small state, such as that of a LoRA, is gathered and copied.
    """
    saved_bytes = state.whole_bytes - _bytes(model)  # trained weights are as large as gradients
    is_kept = saved_bytes >= BACKGROUND_BYTES and is_gathered(saved_bytes, model)
    return saved_bytes + SAVING_BYTES if is_kept else 0


def _forward(measurement: CostMeasurement, count: int) -> None:
    """Run a forward pass of a few examples that keeps all activations for a backward pass."""
    batch = measurement.adapter.prepare_batch(measurement.usual[:count])
    with measurement.strategy.precision.autocast():
        output = measurement.adapter.compute_loss(measurement.model, batch)
    float(output.loss_sum.detach())  # waits for the device


def _bytes(module: torch.nn.Module, *, trained: bool = False) -> int:
    return sum(_size(p) for p in module.parameters() if p.requires_grad or not trained)


def _size(parameter: torch.Tensor) -> int:
    return parameter.numel() * parameter.element_size()
