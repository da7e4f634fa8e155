"""Data-parallel training (*replicate*): every rank has the whole model and a share of the batch.

Frozen weights are on each rank from the start. The gradients of trained weights are summed in flat
buckets after all ranks have computed theirs, so that a batch can be repeated if one rank runs out
of memory.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from infrastructure.backup.format.hashing import available_hash, new_digest
from infrastructure.backup.format.tensor_bytes import to_bytes
from infrastructure.backup.state.random_state import capture_random
from infrastructure.models.model_inputs import is_sharded
from infrastructure.models.trainable_state import trainable_state
from infrastructure.models.weights_on_disk import lies_in
from infrastructure.training.checkpoints.snapshot import (
    Participants,
    Snapshot,
    restore_snapshot,
    take_snapshot,
)
from infrastructure.training.core.metric_accumulator import MetricAccumulator
from infrastructure.training.core.state import TrainingState
from infrastructure.training.distributed.group import Group

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class GroupOutOfMemoryError(torch.OutOfMemoryError):
    """An error raised on all ranks because one of them ran out of memory."""


def shares_of(examples: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Split `examples` into consecutive shares for `size` ranks.

    The lengths differ by at most one; the first shares are the longer ones. The last may be empty.
    """
    length, longer = divmod(len(examples), size)
    ends = [length * (rank + 1) + min(rank + 1, longer) for rank in range(size)]
    return [examples[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def share_seed(seed: int, step: int, rank: int) -> int:
    """Return the random seed for a rank other than 0 in one step.

    It makes a run on the same number of ranks reproducible. Rank 0 has no such seed, because it
    continues with the run's own random state.
    """
    digest = hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def sum_gradients(group: Group, model: torch.nn.Module, window: MetricAccumulator) -> None:
    """Replace gradients, and the losses and items in `window`, by their sums over all ranks.

    A parameter that has no gradient on any rank still has none afterwards, so the optimizer skips
    it.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    has_gradient = [float(parameter.grad is not None) for parameter in trained]
    facts = torch.tensor([0.0, window.num_items, *has_gradient], dtype=torch.float64)
    facts = facts.to(trained[0].device if trained else "cpu")
    facts[0] = window.loss_sum
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    group.sum([*(p.grad for p in trained if p.grad is not None), facts])
    for parameter, count in zip(trained, facts[2:].tolist(), strict=True):
        if count == 0.0:
            parameter.grad = None
    window.loss_sum, window.num_items = facts[0], int(facts[1])


def mirror(group: Group, state: TrainingState, parts: Participants) -> None:
    """Copy rank 0's training state to every rank; do nothing if there is only one rank."""
    if group.size == 1:
        return
    if is_sharded(state.model):
        _mirror_values(group, state, parts)
        return
    own = take_snapshot(state, parts) if group.is_first else None

    def facts() -> dict[str, Any]:
        assert own is not None
        moments = own.tensors["optimizer"].items()
        shapes = {
            name: [str(t.dtype).removeprefix("torch."), list(t.shape), t.device.type]
            for name, t in moments
        }
        return {"values": own.values, "optimizer": shapes}

    received = group.decide(facts)
    if own is None:
        parts.take_form(state.model, received["values"]["loop"])
    model = trainable_state(state.model)
    group.broadcast(model.values())
    optimizer = (
        own.tensors["optimizer"] if own is not None else _room_for(received["optimizer"], parts)
    )
    group.broadcast(optimizer.values())
    if own is None:
        tensors = {"model": model, "optimizer": optimizer, "random": capture_random(parts.device)}
        restore_snapshot(Snapshot(tensors, received["values"]), state, parts)


def _mirror_values(group: Group, state: TrainingState, parts: Participants) -> None:
    """Copy rank 0's state to every rank, except for its tensors, which are sharded."""
    own = take_snapshot(state, parts)
    values = group.decide(lambda: own.values)
    if not group.is_first:
        own.values = values
        restore_snapshot(own, state, parts)


def _room_for(shapes: dict[str, Any], parts: Participants) -> dict[str, torch.Tensor]:
    return {
        name: torch.empty(
            shape, dtype=getattr(torch, dtype), device="cpu" if kind == "cpu" else parts.device
        )
        for name, (dtype, shape, kind) in shapes.items()
    }


def checksum(model: torch.nn.Module) -> str:
    """Return a checksum of the trained weights, for comparing ranks; computed on the device."""
    totals = []
    for index, tensor in enumerate(trainable_state(model).values()):
        flat = tensor.contiguous().view(-1)
        if flat.numel():
            bits = flat.view(INTEGERS[flat.element_size()])
            totals.append((index + 1) * bits.sum(dtype=torch.int64))
    return str(int(torch.stack(totals).sum())) if totals else ""


def fingerprint(model: torch.nn.Module) -> str:
    """Return a hash of the frozen weights, and of the shape and dtype of all other weights."""
    digest = new_digest(available_hash())
    changing = trainable_state(model)
    for name, tensor in changing.items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
    held = {tensor.data_ptr() for tensor in changing.values()}
    for name, parameter in model.named_parameters():
        if parameter.data_ptr() not in held:
            digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
            if lies_in(parameter) is None:
                digest.update(to_bytes(parameter).data)
    return digest.hexdigest()
