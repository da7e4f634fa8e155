"""A toy training that can be saved, killed and gone on with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from infrastructure.backup.format.retention import Retention
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
)
from infrastructure.training.checkpoints.save_schedule import SaveSchedule
from infrastructure.training.checkpoints.snapshot import (
    restore_snapshot,
)
from infrastructure.training.core.state import Phase, TrainingState
from infrastructure.training.extensions.extension_hooks import Event, Hook, HookRunner, Observer
from infrastructure.training.loop.checkpointer import Checkpointer
from infrastructure.training.loop.error_recovery import ErrorRecovery
from infrastructure.training.loop.loop import TrainingLoop
from infrastructure.training.loop.optimizer_step import OptimizerStep
from infrastructure.training.strategies import get_training_strategy
from tests.training.toy import ToyAdapter, ToyModel, ToySource


class Recorder(Observer):
    """Writes every event down, and the loss of every step."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.losses: list[float] = []

    def step_end(self, state: TrainingState) -> None:
        self.events.append("step_end")
        self.losses.append(state.loss)


def _note(event: str) -> Any:
    return lambda self, state: self.events.append(event)


for _event in Event:
    if _event is not Event.STEP_END:
        setattr(Recorder, _event.value, _note(_event.value))


class Training:
    """A toy training that can be saved, killed and gone on with."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        hooks: Sequence[Hook] = (),
        phases: Sequence[Phase] | None = None,
        dropout: float = 0.2,
        num_examples: int = 20,
        scaler: torch.amp.GradScaler | None = None,
        **settings: Any,
    ) -> None:
        values = {
            "batch_size": 2,
            "gradient_accumulation": 3,
            "num_epochs": 3,
            "learning_rate": 0.01,
            "warmup_steps": 2,
            "log_frequency": 1,
        }
        self.config = TrainingConfig(**{**values, **settings})
        self.recorder = Recorder()
        self.adapter = ToyAdapter(self.config, ToyModel(dropout=dropout))
        self.source = ToySource(num_examples)
        strategy = get_training_strategy("standard", self.config)
        strategy.compute_loss = self.adapter.compute_loss
        model = self.adapter.initialize_model()
        torch.manual_seed(1)
        optimizer = strategy.create_optimizer(model, self.config.learning_rate)
        batch_size = self.config.batch_size * self.config.gradient_accumulation
        num_epochs = self.config.num_epochs
        total = self.config.max_steps or num_epochs * -(-num_examples // batch_size)
        self.state = TrainingState(model, optimizer, micro_batch_size=self.config.batch_size)
        self.state.total_steps = total
        self.step = OptimizerStep(
            adapter=self.adapter,
            strategy=strategy,
            data=self.source,
            hooks=HookRunner([*hooks, self.recorder]),
            optimizer=optimizer,
            scheduler=strategy.create_scheduler(optimizer, total),
            scaler=scaler,
            recovery=self.config.recovery,
        )
        manager = CheckpointManager(directory, Retention(99)) if directory is not None else None
        self.checkpointer = Checkpointer(manager, self.step, dict, SaveSchedule())
        self.loop = TrainingLoop(
            self.step,
            ErrorRecovery(self.step, self.checkpointer),
            self.checkpointer,
            config=self.config,
            phases=list(phases or strategy.phases(model, num_epochs)),
            global_batch_size=batch_size,
            total_steps=total,
            evaluate=lambda: {"eval_loss": 1.0},
        )

    @property
    def checkpoints(self) -> CheckpointManager:
        assert self.checkpointer.manager is not None
        return self.checkpointer.manager

    def run(self) -> "Training":
        try:
            self.loop.run(self.state)
        finally:
            if self.checkpointer.manager is not None:
                self.checkpoints.close()
        return self

    def resume(self, checkpoint: Path) -> "Training":
        torch.manual_seed(999)  # whatever state the new process is in must not matter
        restore_snapshot(load_checkpoint(checkpoint), self.state, self.step)
        return self.run()

    @property
    def weights(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in self.state.model.parameters()])
