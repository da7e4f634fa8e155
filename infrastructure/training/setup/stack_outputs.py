"""The plan that a block-wise run prints before it starts, and its files besides the model.

The files are the plan, the start of each phase, each stack, and the rack (the whole model).
"""

import logging
from functools import cache
from pathlib import Path

from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.models.model_inputs import inner_model
from infrastructure.models.saving import save_whole
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Hook
from infrastructure.training.observers.stack_observers import PhaseRecords, StackFiles
from infrastructure.training.stackwise.activation_cache import CACHE_DTYPES, bytes_needed
from infrastructure.training.stackwise.phase_costs import (
    TRAINING_PARTS,
    PlanCosts,
    plan_costs,
    weights_of,
)
from infrastructure.training.stackwise.plain_weights import plain_tensors
from infrastructure.training.stackwise.stack_files import FOLDER, each_once
from infrastructure.training.stackwise.time_step_caches import num_kept
from infrastructure.training.stackwise.trunk_output import MEGABYTE
from infrastructure.training.strategies.stackwise_strategy import StackwiseStrategy

RACK = "rack"

logger = logging.getLogger(__name__)


def stack_observers(trainer: EnhancedTrainer, folder: Path) -> list[Hook]:
    """Return the observers that record a block-wise run in `folder`.

    They write `stackwise.json`, and `stacks/` if configured. Other runs have none. Add them to
    the trainer before it is prepared; see `save_stacks_and_rack`.
    """
    strategy = trainer.strategy
    if not isinstance(strategy, StackwiseStrategy):
        return []
    records = PhaseRecords(folder, cache(lambda: plan_of(trainer)))
    if not trainer.training_config.save_stacks:
        return [records]

    def training() -> JsonObject:
        # not the hash of the identity, which contains a run key: equal runs, equal files
        data = trainer.prepare().data.fingerprint
        return {"settings": trainer.identity()["settings"], "data": data}

    return [records, StackFiles(folder / FOLDER, strategy, training)]


def plan_of(trainer: EnhancedTrainer) -> PlanCosts | None:
    """Return the costs of a block-wise run, phase by phase, and prepare it if necessary.

    None if it is another kind of training, or if the costs cannot be determined.
    """
    strategy = trainer.strategy
    if not isinstance(strategy, StackwiseStrategy):
        return None
    loop = trainer.prepare()
    assert strategy.rack is not None
    assert strategy.plan is not None
    try:
        return plan_costs(
            trainer.training_config,
            strategy.rack,
            strategy.plan,
            create_optimizer=trainer.create_optimizer,
            steps_per_epoch=strategy.steps_per_epoch,
            total_steps=loop.total_steps,
            loaded_dtype=strategy.loaded_dtype,
            cache_bytes=_cache_bytes(trainer, strategy),
        )
    except Exception as error:  # the training will hit it too, and can handle it
        logger.warning(phrase("training.stack_plan_unavailable", error=error))
        return None


def known_plan(trainer: EnhancedTrainer) -> PlanCosts | None:
    """Return the result of `plan_of`, computed only once for a run that records it."""
    known = [hook.plan() for hook in trainer.hooks.hooks if isinstance(hook, PhaseRecords)]
    return known[0] if known else plan_of(trainer)


def plan_lines(trainer: EnhancedTrainer, step_seconds: float | None = None) -> list[str]:
    """Return the plan of a block-wise run as lines of text.

    Args:
        step_seconds: the measured time of a step. None: the lines have no times.
    """
    plan = known_plan(trainer)
    if plan is None:
        return []
    if step_seconds is None:
        return plan.lines()
    return plan.lines(plan.seconds_of_phases(measured_phase(trainer), step_seconds))


def measured_phase(trainer: EnhancedTrainer) -> int:
    """Return the index of the phase for which the costs of a step are measured."""
    assert isinstance(trainer.strategy, StackwiseStrategy)
    assert trainer.strategy.plan is not None
    return trainer.strategy.entered % len(trainer.strategy.plan.phases)


def disk_bytes(trainer: EnhancedTrainer) -> tuple[int, int]:
    """Return the disk use of a block-wise run besides its model, in bytes; (0, 0) for other runs.

    The first number is for the files that remain (stacks, and the whole model with `save_rack`),
    the second for those that exist during training (cached activations).
    """
    strategy, config = trainer.strategy, trainer.training_config
    if not isinstance(strategy, StackwiseStrategy):
        return 0, 0
    trainer.prepare()
    assert strategy.rack is not None
    weights = weights_of(strategy.rack, strategy.loaded_dtype)
    model_bytes = sum(w.count * w.dtype.itemsize for w in weights if w.part not in TRAINING_PARTS)
    cached = None if config.cache_dir else _cache_bytes(trainer, strategy)
    return (config.save_stacks + config.save_rack) * model_bytes, cached or 0


def _cache_bytes(trainer: EnhancedTrainer, strategy: StackwiseStrategy) -> int | None:
    """Return the maximum disk use of cached activations in bytes; None if none are cached."""
    config = trainer.training_config
    assert strategy.rack is not None
    assert strategy.plan is not None
    if strategy.cache_source is None or all(phase.start == 0 for phase in strategy.plan.phases):
        return None
    budget = config.cache_size * MEGABYTE
    lengths = getattr(trainer.initialize_data(), "lengths", lambda: None)()
    if lengths is None:
        return budget
    bins = len({phase.time_step for phase in strategy.plan.phases})
    kept = bins if config.store_all_time_steps else min(bins, config.time_step_cache_size)
    boundaries = max(1, len({phase.start for phase in strategy.plan.phases} - {0}))
    count = num_kept(kept, boundaries, config.cache_mode)
    dtype = CACHE_DTYPES[config.cache_dtype]
    each = bytes_needed(int(lengths.sum()), strategy.rack.hidden_size, dtype)
    return min(budget, count * each)


def save_stacks_and_rack(trainer: EnhancedTrainer, folder: Path) -> list[str]:
    """Write the final state of all stacks, and the rack, as configured.

    Returns:
        A sentence for each file that could not be written; the model itself is saved elsewhere.
    """
    state, model = trainer.state, trainer.model
    if not isinstance(trainer.strategy, StackwiseStrategy):
        return []
    assert state is not None
    assert model is not None
    problems = []
    try:
        for hook in trainer.hooks.hooks:
            if isinstance(hook, StackFiles):
                hook.finish(state)
    except OSError as error:
        problems.append(
            phrase("training.saved_stacks_incomplete", folder=folder / FOLDER, error=error)
        )
    if trainer.training_config.save_rack:
        inner = inner_model(model)
        weights = each_once(dict(plain_tensors(inner)))
        try:
            save_whole(inner, trainer.adapter.tokenizer, folder / RACK, weights)
        except OSError as error:
            problems.append(phrase("training.rack_not_saved", folder=folder / RACK, error=error))
    return problems
