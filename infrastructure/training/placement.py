"""The processes of a run: which there are, and whether the model is sharded over them."""

import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch

from infrastructure.backup.state.random_state import capture_random, seed_everything
from infrastructure.config.base import ConfigurationError
from infrastructure.config.merging.sharding import why_not_spread
from infrastructure.core.hardware import gib
from infrastructure.core.messages import Setting, phrase
from infrastructure.models.model_inputs import is_sharded
from infrastructure.models.preserve import preserve
from infrastructure.models.trainable_state import trainable_state, whole
from infrastructure.models.weights_on_disk import put_back
from infrastructure.optimization.device_errors import free_memory
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.optimization.peak_memory import PeakMemory
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.checkpoints.snapshot import restore_snapshot
from infrastructure.training.distributed.checkpoint_storage import load_together
from infrastructure.training.distributed.group import ALONE, Group, JoinedGroup
from infrastructure.training.distributed.ranks import Ranks
from infrastructure.training.distributed.shard import Sharding, mesh_of, shard_model
from infrastructure.training.extensions.extension_hooks import Extension, Hook
from infrastructure.training.forward.evaluation_loss import holds_out
from infrastructure.training.loop.session import TrainingSession
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.run_facts import welcome
from infrastructure.training.sizing.batch_planner import BatchPlanner
from infrastructure.training.sizing.cost_measurement import CostMeasurement


class Placement:
    """Which of the processes of a run this one is, and how they share the model.

    Args:
        ranks: the ranks that this process leads, the group that it has joined as another rank, or
            `ALONE`.
        sharding: how rank 0 has decided to shard the model.

    Attributes:
        size: number of processes, including this one.
        is_first: True if this is rank 0, which decides.
        sharding: how the model is sharded over the ranks during training. None: each rank has the
            whole model.
        reason: why rank 0 shards the model, or does not. "": it cannot be sharded.
        before: held-out metrics before the first step, if the model is too large for any single
            process to evaluate it.
    """

    def __init__(self, ranks: Group | Ranks = ALONE, sharding: Sharding | None = None) -> None:
        self.ranks, self.sharding = ranks, sharding
        self.size, self.is_first = ranks.size, ranks.is_first
        self.reason = ""
        self.before: dict[str, float] = {}
        self._restore_part: Callable[[Group], None] | None = None

    def of_this_rank(self, hooks: Iterable[Hook]) -> list[Hook]:
        """Return the hooks that this rank needs: on ranks other than 0, only shared extensions."""
        return [hook for hook in hooks if self.is_first or _is_shared(hook)]

    def refuse_own(self, hooks: Iterable[Hook]) -> None:
        """Raise if `hooks` contain an extension that the other ranks would need but cannot build.

        Raises:
            ConfigurationError: there is such an extension. The message names it.
        """
        own = (hook for hook in hooks if _is_shared(hook))
        if self.size > 1 and (extension := next(own, None)):
            raise ConfigurationError(
                "training.extension_in_one_process",
                num_processes=self.size,
                extension=extension.name,
            )

    def may_shard(self, adapter: ModelAdapter) -> bool:
        """Return whether this process is to decide if the model is sharded."""
        wanted = adapter.training_config.shard
        why_not = next(why_not_spread(adapter.model_config, adapter.training_config), None)
        leads = self.is_first and self.size > 1
        return leads and wanted != "no" and not (why_not and wanted == "auto")

    def is_too_large(self, adapter: ModelAdapter, budget: MemoryBudget) -> bool:
        """Return whether this process should read only its own part of the weights.

        It should if the memory cannot hold the whole model and this process's part of the training
        state.
        """
        weights = adapter.weight_bytes() if self.may_shard(adapter) else None
        if weights is None:
            return False
        there = budget.limit_bytes(adapter.device, self.size)
        # a gradient and two AdamW values for each trained weight
        part = weights * (1 if adapter.model_config.lora_config else 4) // self.size
        return PeakMemory(adapter.device).now() + weights + part > there

    def choose_sharding(self, measurement: CostMeasurement) -> None:
        """Decide whether to shard the model: set `sharding`, and `reason`."""
        adapter, size = measurement.adapter, self.size
        wanted = adapter.training_config.shard
        spread = phrase("training.sharded_state", size=size, share=f"1/{size}")
        if adapter.on_disk:
            spread += phrase("training.no_process_has_whole_model")
        if wanted != "auto":
            self.sharding = Sharding(wanted)
            self.reason = phrase(
                "config.setting_says", setting=Setting("training.shard", wanted), reason=spread
            )
            return
        on_disk = adapter.weight_bytes() if adapter.on_disk else None
        needed = measurement.fixed_bytes() + (on_disk or 0)
        there = measurement.budget.limit_bytes(adapter.device, size)
        memory = {"needed": gib(needed), "available": gib(there)}
        if needed <= there and not adapter.on_disk:
            self.reason = phrase("training.state_fits_each_process", size=size, **memory)
            return
        self.sharding = Sharding.SHARD
        self.reason = phrase("training.state_is_sharded", **memory, sharding=spread)

    def restore_on_join(self, restore_part: Callable[[Group], None]) -> None:
        """Restore a sharded model by `restore_part` once all ranks have joined."""
        self._restore_part = restore_part

    def join(
        self,
        session: TrainingSession,
        planner: BatchPlanner,
        evaluate: Callable[[], dict[str, float]],
    ) -> Group:
        """Wait for all ranks, shard the model over them if so decided, and return their group.

        Args:
            evaluate: returns the held-out metrics of the sharded model, for `before`.

        Raises:
            ProcessLostError: a rank is unavailable.
        """
        resolved = planner.decide().resolved()
        group = self.ranks.join(partial(welcome, session, resolved, self.sharding))
        if self.sharding is not None and isinstance(group, JoinedGroup):
            self._shard(group, self.sharding, session, planner, evaluate)
        return group

    def leave(self, session: TrainingSession, reason: str | None) -> None:
        """Put a sharded model together, unless the training failed, and leave the other ranks.

        Args:
            reason: why the training fails, or None.
        """
        try:
            if reason is None and self.sharding is not None:
                _put_together(session)
        finally:
            self.ranks.close(reason)

    def _shard(
        self,
        group: JoinedGroup,
        sharding: Sharding,
        session: TrainingSession,
        planner: BatchPlanner,
        evaluate: Callable[[], dict[str, float]],
    ) -> None:
        """Shard the model over the ranks, and create the optimizer again for the sharded weights.

        All ranks start from rank 0's weights, or resume from its checkpoint.
        """
        step, state = session.loop.optimizer_step, session.state
        if is_sharded(state.model):
            return
        if not step.adapter.on_disk:  # each rank reads its part
            group.broadcast(trainable_state(state.model).values())
        step.optimizer.param_groups.clear()  # it would keep the whole weights
        shard_model(state.model, mesh_of(group), offload=sharding is Sharding.OFFLOAD)
        session.renew_optimizer()
        free_memory(step.device)
        restores = group.decide(lambda: self._restore_part is not None)
        if restores and self._restore_part is not None:
            self._restore_part(group)
            limit = planner.memory_limit()  # lowered if a rank ran out of memory
            state.micro_batch_size = limit.at_most(state.micro_batch_size)
        elif restores:
            snapshot = load_together(group, None, state.model, step.optimizer)
            snapshot.tensors["random"] = capture_random(step.device)
            restore_snapshot(snapshot, state, step)
        elif step.adapter.on_disk and holds_out(step.data):
            with group.watched():
                self.before = evaluate()


def _put_together(session: TrainingSession) -> None:
    """Gather the trained weights of all ranks in a whole model on rank 0."""
    step, state = session.loop.optimizer_step, session.state
    group, adapter = step.group, step.adapter
    if not isinstance(group, JoinedGroup) or not is_sharded(state.model):
        return
    if group.decide(lambda: state.is_interrupted):
        return
    parts = trainable_state(state.model)
    step.optimizer.state.clear()
    gathered = ((name, whole(part)) for name, part in parts.items())
    if not group.is_first:
        with group.watched():
            deque(gathered, maxlen=0)
        return
    seed_everything(step.seed)
    with group.busy(), preserve(state.model, random=step.device):
        model = adapter.initialize_model()
    with group.watched(), torch.no_grad():
        if adapter.on_disk:
            put_back(model, gathered, _folder(session.loop.checkpointer.manager))
        else:
            targets = trainable_state(model)
            for name, weight in gathered:
                targets[name].copy_(weight)
    state.model = model


def _folder(manager: CheckpointManager | None) -> Path:
    """Return the folder of the run, or a folder for temporary files."""
    return Path(tempfile.gettempdir()) if manager is None else manager.store.root.parent


def _is_shared(hook: Hook) -> bool:
    return isinstance(hook, Extension) and not hook.is_of_first_rank
