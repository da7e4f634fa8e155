"""Somebody's own strategy in its first step before the training: nothing of it stays.

What it keeps for itself it keeps in a copy; what it changes in the model is put back.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from infrastructure.config.merging.plugin_names import OUR_PACKAGES
from infrastructure.training.core.preserve import preserve
from infrastructure.training.strategies.base_strategy import NOT_ENTERED, TrainingStrategy
from infrastructure.training.strategies.stackwise_strategy import StackwiseStrategy


def is_own(strategy: TrainingStrategy) -> bool:
    """Whether it is somebody's own. One that is stack-wise has forms that take a run to enter, and
    counts as ours."""
    is_ours = type(strategy).__module__.partition(".")[0] in OUR_PACKAGES
    return not (is_ours or isinstance(strategy, StackwiseStrategy))


@contextmanager
def first_step(
    strategy: TrainingStrategy,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    examples: Sequence[object],
) -> Iterator[TrainingStrategy]:
    """Inside, a strategy of somebody's own has begun its first phase and step, as in the loop: what
    its `train_step` reads may be set there. Ours needs none of it, and one whose training is under
    way has it; they come back as they are.

    The weights of `model` are not put back: see `preserve`.
    """
    if not is_own(strategy) or strategy.entered != NOT_ENTERED:
        yield strategy
        return
    trial = _copied(strategy, model)
    trial.steps_per_epoch = trial.steps_per_epoch or 1
    draw = None if strategy.objective is None else strategy.objective.draw
    try:
        with preserve(model, modes=True, requires_grad=True, attributes=True):
            trial.phases(model, 1)
            trial.enter_phase(model, optimizer, 0)
            trial.begin_step(0, examples)
            yield trial
    finally:
        if strategy.objective is not None and draw is not None:
            strategy.objective.draw = draw


def _copied(strategy: TrainingStrategy, model: torch.nn.Module) -> TrainingStrategy:
    """A copy with everything of its own, and the same model, configuration and loss."""
    given = (strategy.config, strategy.logger, strategy.compute_loss, strategy.objective)
    shared = [*given, *model.modules(), *model.parameters(), *model.buffers()]
    try:
        return copy.deepcopy(strategy, {id(one): one for one in shared})
    except Exception:  # of a lock, an open file, or what is too large to be there twice
        return copy.copy(strategy)
