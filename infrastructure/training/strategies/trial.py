"""A trial of a user-defined strategy's first step before the run, without side effects.

Only a copy of the strategy changes its state, and changes to the model are undone.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from infrastructure.config.merging.plugin_names import OUR_PACKAGES
from infrastructure.models.preserve import preserve
from infrastructure.training.strategies.base_strategy import NOT_ENTERED, TrainingStrategy


def is_own(strategy: TrainingStrategy) -> bool:
    """Return whether the strategy is user-defined and can be tried before the run.

    A strategy with `has_forms` cannot be tried, because its changes to the model's layers would not
    be undone.
    """
    is_ours = type(strategy).__module__.partition(".")[0] in OUR_PACKAGES
    return not (is_ours or strategy.has_forms)


@contextmanager
def first_step(
    strategy: TrainingStrategy,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    examples: Sequence[object],
) -> Iterator[TrainingStrategy]:
    """Begin the first phase and step of a copy of a user-defined strategy, and yield the copy.

    The `train_step` of such a strategy may rely on both. Built-in strategies, and a strategy that
    is already training, are yielded unchanged.

    The weights of `model` are not restored: see `preserve`.
    """
    if not is_own(strategy) or strategy.entered != NOT_ENTERED:
        yield strategy
        return
    trial = _copied(strategy, model)
    trial.steps_per_epoch = trial.steps_per_epoch or 1
    draw = None if strategy.objective is None else strategy.objective.draw
    try:
        with preserve(model, requires_grad=True, attributes=True):  # modes are attributes
            trial.phases(model, 1)
            trial.enter_phase(model, optimizer, 0)
            trial.begin_step(0, examples)
            yield trial
    finally:
        if strategy.objective is not None and draw is not None:
            strategy.objective.draw = draw


def _copied(strategy: TrainingStrategy, model: torch.nn.Module) -> TrainingStrategy:
    """Return a deep copy of a strategy that shares the model, configuration and loss."""
    given = (strategy.config, strategy.logger, strategy.compute_loss, strategy.objective)
    shared = [*given, *model.modules(), *model.parameters(), *model.buffers()]
    try:
        return copy.deepcopy(strategy, {id(one): one for one in shared})
    except Exception:  # for example a lock, an open file, or an object too large to copy
        return copy.copy(strategy)
