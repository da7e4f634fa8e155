"""Resuming a checkpoint with settings that the user has changed on purpose.

An accepted change takes effect from the next step on, whatever the checkpoint contains:

- Other data: the current epoch starts again with the new data, so each row of the new data is used
once for each remaining epoch. - Another seed: the epoch continues at the same position in another
order. - Other data, batch size, epochs or max_steps: the training ends when the remaining epochs
are done, and the learning rate decays over the remaining steps. - Another optimizer: it starts
without state.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from infrastructure.backup.state.optimizer_state import split_optimizer
from infrastructure.core.integers import ceil_div
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.core.state import Phase
from infrastructure.training.loop.loop import TrainingLoop, phase_ends

MICRO_BATCH = frozenset({"batch_size", "gradient_accumulation"})


def move_position(
    values: dict[str, Any], accepted: Collection[str], phases: Sequence[Phase]
) -> None:
    """Move the position in a checkpoint to the point from which the changed run resumes."""
    position = values["position"]
    if "data" in accepted:
        num_examples = values["identity"]["num_examples"]
        position["epoch"] += position["example"] >= num_examples  # its end was not done yet
        position["example"] = 0
        values["skipped"] = []  # batches of the other data
    position["phase"] = sum(end <= position["epoch"] for end in phase_ends(phases))


def steps_left(
    values: dict[str, Any], num_examples: int, global_batch_size: int, phases: Sequence[Phase]
) -> int:
    """Return the number of optimizer steps from a checkpoint's position to the end."""
    position = values["position"]
    epochs_after = sum(phase.num_epochs for phase in phases) - position["epoch"] - 1
    if epochs_after < 0:
        return 0
    in_this_epoch = ceil_div(num_examples - position["example"], global_batch_size)
    return int(in_this_epoch + epochs_after * ceil_div(num_examples, global_batch_size))


def resumed_total_steps(
    was: Mapping[str, Any], values: dict[str, Any], loop: TrainingLoop, planned_steps: int
) -> int:
    """Return the total number of optimizer steps of a resumed run.

    The number is that of the checkpoint. If accepted changes affect it, it is computed again for
    the remaining epochs.

    Args:
        was: the identity in the checkpoint.
        values: all values in the checkpoint.
        planned_steps: number of steps of a new run with the current settings.
    """
    if was["planned_steps"] == planned_steps:
        return int(was["total_steps"])
    left = steps_left(values, loop.data.num_examples, loop.global_batch_size, loop.phases)
    return min(values["step"] + left, loop.config.max_steps or sys.maxsize)


def forget_optimizer(snapshot: Snapshot, optimizer: torch.optim.Optimizer) -> None:
    """Replace the optimizer state in the checkpoint with that of a new optimizer."""
    tensors, values = split_optimizer(optimizer.state_dict())
    snapshot.tensors["optimizer"] = tensors
    snapshot.values["optimizer"] = values


def hyperparameters(optimizer: torch.optim.Optimizer) -> list[dict[str, object]]:
    """Return the settings of each parameter group, such as learning rate, betas and decay."""
    return [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]


def apply_hyperparameters(
    optimizer: torch.optim.Optimizer,
    scheduler: LambdaLR | None,
    groups: list[dict[str, Any]],
) -> None:
    """Set the values that `hyperparameters` returned, and recompute the current learning rate."""
    for group, wanted in zip(optimizer.param_groups, groups, strict=True):
        group.update(wanted)
    if scheduler is None:
        return
    scheduler.base_lrs = [group["initial_lr"] for group in groups]
    step = scheduler.last_epoch
    rates = [
        base * factor(step)
        for base, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    ]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    scheduler._last_lr = rates
