"""What a stack-wise training says before it starts, and what it leaves beside its model: the plan,
which phase began when, each stack, the whole rack."""

import logging
from functools import cache
from pathlib import Path

from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Hook
from infrastructure.training.models.model_inputs import inner_model
from infrastructure.training.models.saving import save_whole
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
    """What writes down a stack-wise training in `folder`: `stackwise.json`, and `stacks/` as far as
    they are wanted. Nothing for any other training.

    To be added to the trainer before it is prepared; see `save_stacks_and_rack`.
    """
    strategy = trainer.strategy
    if not isinstance(strategy, StackwiseStrategy):
        return []
    records = PhaseRecords(folder, cache(lambda: plan_of(trainer)))
    if not trainer.training_config.save_stacks:
        return [records]

    def training() -> JsonObject:
        # not the hash of the identity, which has a key of the run: equal trainings, equal files
        data = trainer.prepare().data.fingerprint
        return {"settings": trainer.identity()["settings"], "data": data}

    return [records, StackFiles(folder / FOLDER, strategy, training)]


def plan_of(trainer: EnhancedTrainer) -> PlanCosts | None:
    """What a stack-wise training will take, phase by phase; prepares it if need be. None of any
    other training, and where it cannot be said."""
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
    except Exception as error:  # the training itself will meet it, and knows an answer
        logger.warning(phrase("training.stack_plan_unavailable", error=error))
        return None


def known_plan(trainer: EnhancedTrainer) -> PlanCosts | None:
    """`plan_of`, once for a run that writes it down."""
    known = [hook.plan() for hook in trainer.hooks.hooks if isinstance(hook, PhaseRecords)]
    return known[0] if known else plan_of(trainer)


def plan_lines(trainer: EnhancedTrainer, step_seconds: float | None = None) -> list[str]:
    """The plan of a stack-wise training, for people.

    Args:
        step_seconds: of a step as it is measured; None: nothing is said of time.
    """
    plan = known_plan(trainer)
    if plan is None:
        return []
    if step_seconds is None:
        return plan.lines()
    return plan.lines(plan.seconds_of_phases(measured_phase(trainer), step_seconds))


def measured_phase(trainer: EnhancedTrainer) -> int:
    """The number of the phase that the costs of a step are measured of."""
    assert isinstance(trainer.strategy, StackwiseStrategy)
    assert trainer.strategy.plan is not None
    return trainer.strategy.entered % len(trainer.strategy.plan.phases)


def disk_bytes(trainer: EnhancedTrainer) -> tuple[int, int]:
    """What a stack-wise training leaves in its folder beside its model (stacks, rack), and what it
    has there meanwhile (cached activations). Nothing of any other."""
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
    """What cached activations take on the disk at most; None where none are cached."""
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
    """Write all stacks as they are at the training's end, and the rack, as far as they are wanted.

    Returns:
        A sentence for each that the disk refused; the model itself is saved elsewhere.
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
