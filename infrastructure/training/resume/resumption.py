"""Resuming a run from a checkpoint, also with settings that the user has changed on purpose.

An accepted change takes effect from the next step on, whatever the checkpoint contains:

- Different data: the current epoch starts again with the new data, so each row of the new data is
  used once for each remaining epoch.
- Another seed: the epoch continues at the same position in a different order.
- Different data, batch size, epochs or max_steps: the training ends when the remaining epochs are
  done, and the learning rate decays over the remaining steps.
- Another optimizer: it starts without state.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from infrastructure.backup.state.optimizer_state import split_optimizer
from infrastructure.core.integers import ceil_div
from infrastructure.run.compatibility import Facts, Verdict, check_compatible
from infrastructure.run.configuration_judge import ConfigurationJudge, canonical_name
from infrastructure.run.history import history_in
from infrastructure.training.checkpoints.checkpoint_manager import load_checkpoint
from infrastructure.training.checkpoints.snapshot import (
    Snapshot,
    restore_progress,
    restore_snapshot,
)
from infrastructure.training.core.state import Phase
from infrastructure.training.distributed.checkpoint_storage import load_together
from infrastructure.training.distributed.group import Group
from infrastructure.training.loop.loop import TrainingLoop, phase_ends
from infrastructure.training.loop.session import TrainingSession

MICRO_BATCH = frozenset({"batch_size", "gradient_accumulation"})


class Resumption:
    """A checkpoint that is to be restored in a session of its run.

    Creating it adapts the position in the checkpoint and the session's number of steps to the
    changes of settings.

    Args:
        snapshot: the checkpoint's content. Tensors that it lacks are loaded when they are restored.
        now: the session's identity.
        accept: names of changes that are accepted although they change the result.

    Attributes:
        agreed: the differences from the run of the checkpoint, all harmless or accepted.

    Raises:
        ValueError: `accept` contains an unknown name.
        CheckpointError: there is another difference that changes the result.
    """

    def __init__(
        self,
        session: TrainingSession,
        checkpoint: Path,
        snapshot: Snapshot,
        now: Facts,
        accept: Collection[str],
    ) -> None:
        self.session, self.checkpoint, self.snapshot = session, checkpoint, snapshot
        loop, values = session.loop, snapshot.values
        was = values.get("identity", {})
        names = frozenset(map(canonical_name, accept))
        self.agreed = check_compatible(was, now, ConfigurationJudge(), names)
        changes = (d for d in self.agreed if d.verdict is Verdict.CHANGES_THE_RESULT)
        self._accepted = {difference.name for difference in changes}
        self._groups = hyperparameters(loop.optimizer_step.optimizer)
        if was:
            move_position(values, self._accepted, loop.phases)
            planned_steps = session.planned.total_steps
            session.set_length(resumed_total_steps(was, values, loop, planned_steps))
        if self._accepted & MICRO_BATCH:
            values["micro_batch_size"] = session.state.micro_batch_size

    def restore(self) -> None:
        """Restore the whole state in this process.

        Raises:
            CheckpointError: the checkpoint is damaged, or belongs to another model.
        """
        if not self.snapshot.tensors:
            self.snapshot.tensors = load_checkpoint(self.checkpoint).tensors
        self._restore(self.snapshot)
        self._note_start()

    def restore_progress(self) -> None:
        """Restore only the progress; `restore_part` restores the rest on each rank."""
        restore_progress(self.snapshot.values, self.session.state)
        self._note_start()

    def restore_part(self, group: Group) -> None:
        """Restore this rank's part of a sharded model; all ranks call this together."""
        optimizer = self.session.loop.optimizer_step.optimizer
        parts = load_together(group, self.checkpoint, self.session.state.model, optimizer)
        self._restore(Snapshot(parts.tensors, self.snapshot.values))

    def _restore(self, snapshot: Snapshot) -> None:
        step = self.session.loop.optimizer_step
        if "optimizer" in self._accepted:
            forget_optimizer(snapshot, step.optimizer)
        restore_snapshot(snapshot, self.session.state, step)
        if self._accepted:
            apply_hyperparameters(step.optimizer, step.scheduler, self._groups)

    def _note_start(self) -> None:
        """Record where the session starts, and whether this start is already saved."""
        state, saves = self.session.state, self.session.loop.checkpointer
        state.checkpoint = self.checkpoint
        saves.history = history_in(self.snapshot.values)
        saved = [] if saves.manager is None else saves.manager.checkpoints()
        is_changed = bool(self._accepted) and state.step < self.session.loop.total_steps
        saves.start_is_saved = saved[-1:] == [self.checkpoint] and not is_changed


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
