"""A session of a run that is ready to train, and the length of a new run."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.optim.lr_scheduler import LambdaLR

from infrastructure.config.auto import num_epochs_for
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import InputError
from infrastructure.training.core.state import Phase, TrainingState
from infrastructure.training.extensions.extension_hooks import Extension
from infrastructure.training.loop.loop import TrainingLoop
from infrastructure.training.strategies.base_strategy import TrainingStrategy


@dataclass(frozen=True)
class TrainingLength:
    """The phases of a run, and its number of optimizer steps.

    Attributes:
        phases: the phases in order; those of extensions are the first.
        num_first: optimizer steps of the phases of extensions.
        total_steps: optimizer steps of all phases, limited by `training.max_steps`.
    """

    phases: list[Phase]
    num_first: int
    total_steps: int

    @property
    def num_epochs(self) -> int:
        """The number of epochs of all phases."""
        return _num_epochs(self.phases)

    @classmethod
    def of(
        cls,
        config: TrainingConfig,
        strategy: TrainingStrategy,
        extensions: Iterable[Extension],
        model: torch.nn.Module,
        steps_per_epoch: int,
        from_scratch: bool,
    ) -> "TrainingLength":
        """Return the length of a new run with this strategy and these extensions.

        Raises:
            ValueError: the run ends before its last phase begins.
        """
        strategy.steps_per_epoch = steps_per_epoch
        num_phases = _num_epochs(strategy.phases(model, 1))
        num_epochs = num_epochs_for(config, from_scratch, steps_per_epoch, num_phases)
        first = [phase for extension in extensions for phase in extension.first_phases(model)]
        phases = [*first, *strategy.phases(model, num_epochs)]
        num_first = _num_epochs(first) * steps_per_epoch
        total_steps = min(config.max_steps or sys.maxsize, _num_epochs(phases) * steps_per_epoch)
        if first and total_steps <= num_first:
            raise InputError(
                "training.run_ends_in_first_phase",
                total_steps=total_steps,
                num_steps=num_first,
                phase=first[-1].name,
            )
        strategy.check_length(total_steps)
        return cls(phases, num_first, total_steps)

    def create_scheduler(
        self, strategy: TrainingStrategy, optimizer: torch.optim.Optimizer
    ) -> LambdaLR:
        """Create the strategy's scheduler; the phases of extensions have a schedule of their own.

        Its peak is the learning rate of added weights.
        """
        num_first = self.num_first
        later = strategy.create_scheduler(optimizer, self.total_steps - num_first)
        if not num_first:
            return later
        first = strategy.rate_factor(num_first)

        def of_group(rate: float, factor: Callable[[int], float]) -> Callable[[int], float]:
            peak = rate if strategy.added_rate is None else strategy.added_rate

            def at(step: int) -> float:
                return first(step) * peak / rate if step < num_first else factor(step - num_first)

            return at

        rates = [float(group["initial_lr"]) for group in optimizer.param_groups]
        pairs = zip(rates, later.lr_lambdas, strict=True)
        return LambdaLR(optimizer, [of_group(rate, factor) for rate, factor in pairs])


def _num_epochs(phases: Iterable[Phase]) -> int:
    return sum(phase.num_epochs for phase in phases)


@dataclass(frozen=True)
class TrainingSession:
    """A session of a run that is ready to train.

    Attributes:
        planned: the length of a new run with these settings. A resumed run may have another number
            of steps.
        create_optimizer: creates the run's optimizer for a model.
    """

    loop: TrainingLoop
    state: TrainingState
    planned: TrainingLength
    create_optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer]

    def set_length(self, total_steps: int) -> None:
        """Set the number of optimizer steps, with a new learning-rate schedule if it changes."""
        if total_steps != self.loop.total_steps:
            self.state.total_steps = self.loop.total_steps = total_steps
            self._renew_scheduler()

    def renew_optimizer(self) -> None:
        """Create optimizer and schedule again, for the model's current parameters."""
        step, state = self.loop.optimizer_step, self.state
        state.optimizer = step.optimizer = self.create_optimizer(state.model)
        self._renew_scheduler()

    def _renew_scheduler(self) -> None:
        step = self.loop.optimizer_step
        length = replace(self.planned, total_steps=self.loop.total_steps)
        step.scheduler = length.create_scheduler(step.strategy, step.optimizer)

    def save_checkpoint(self) -> Path:
        """Save a checkpoint of the run, and return its path.

        Raises:
            ValueError: there is no folder for checkpoints.
            OSError: the disk returns an error. Earlier checkpoints are untouched.
        """
        return self.loop.checkpointer.save_now(self.state)
