"""The plan that a block-wise run prints before it starts, and the files that it writes.

The files, besides the model, are the plan with the start of each phase, each stack, and the rack
(the whole model).
"""

import logging
from functools import cache
from pathlib import Path
from typing import Any

from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.features.stackwise.training.activation_cache import CACHE_DTYPES, bytes_needed
from infrastructure.features.stackwise.training.observers import PhaseRecords, StackFiles
from infrastructure.features.stackwise.training.phase_costs import (
    TRAINING_PARTS,
    PlanCosts,
    plan_costs,
    weights_of,
)
from infrastructure.features.stackwise.training.plain_weights import plain_tensors
from infrastructure.features.stackwise.training.stack_files import FOLDER, each_once
from infrastructure.features.stackwise.training.trunk_output import MEGABYTE, kept_caches
from infrastructure.models.model_inputs import inner_model
from infrastructure.models.saving import save_whole
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Hook
from infrastructure.training.strategies.run_parts import RunParts

RACK = "rack"

logger = logging.getLogger(__name__)


class StackRun(RunParts):
    """The parts that block-wise training adds to a run: plan, costs, files of stacks, and rack.

    Args:
        strategy: a `StackwiseStrategy`.
    """

    def __init__(self, strategy: Any, trainer: EnhancedTrainer) -> None:
        self.strategy, self.trainer = strategy, trainer
        self.config = trainer.training_config

    def observers(self, folder: Path) -> list[Hook]:
        """Return the observers that write `stackwise.json` and, if configured, `stacks/`.

        Add the observers to the trainer before the trainer is prepared; see `save`.
        """
        records = PhaseRecords(folder, cache(self._costs))
        if not self.config.save_stacks:
            return [records]

        def training() -> JsonObject:
            # not the hash of the identity, which contains a run key: equal runs, equal files
            data = self.trainer.prepare().loop.data.fingerprint
            return {"settings": self.trainer.identity()["settings"], "data": data}

        return [records, StackFiles(folder / FOLDER, self.strategy, training)]

    def _costs(self) -> PlanCosts | None:
        """Compute the costs of each phase, or return None if this fails.

        The trainer is prepared if necessary.
        """
        loop, stacks = self.trainer.prepare().loop, self.strategy.stacks
        try:
            return plan_costs(
                self.config,
                stacks.rack,
                stacks.plan,
                create_optimizer=self.trainer.create_optimizer,
                steps_per_epoch=self.strategy.steps_per_epoch,
                total_steps=loop.total_steps,
                loaded_dtype=stacks.loaded_dtype,
                cache_bytes=self._cache_bytes(),
            )
        except Exception as error:  # the training will hit it too, and can handle it
            logger.warning(phrase("stackwise.stack_plan_unavailable", error=error))
            return None

    def plan(self) -> PlanCosts | None:
        """Return the costs of each phase. The costs are computed only once for a run that records
        them.
        """
        hooks = self.trainer.hooks.hooks
        known = [hook.plan() for hook in hooks if isinstance(hook, PhaseRecords)]
        return known[0] if known else self._costs()

    @property
    def _measured(self) -> int:
        """The index of the phase in which the costs of a step are measured."""
        return int(self.strategy.entered % len(self.strategy.stacks.plan.phases))

    def lines(self, step_seconds: float | None = None) -> list[str]:
        plan = self.plan()
        if plan is None or step_seconds is None:
            return [] if plan is None else plan.lines()
        return plan.lines(plan.seconds_of_phases(self._measured, step_seconds))

    def seconds_left(self, step: int, num_left: int, step_seconds: float) -> float:
        plan = self.plan()
        if plan is None:
            return num_left * step_seconds
        return plan.seconds_left(step, self._measured, step_seconds)

    def growth_bytes(self, step: int, heaviest_units: int, value_bytes: int) -> int:
        plan = self.plan()
        if plan is None:
            return 0
        return plan.growth_bytes(step, self._measured, heaviest_units, value_bytes)

    def disk_bytes(self) -> tuple[int, int]:
        """Return the bytes of saved stacks and rack, and of the cache in the run directory."""
        self.trainer.prepare()
        weights = weights_of(self.strategy.stacks.rack, self.strategy.stacks.loaded_dtype)
        of_model = (w for w in weights if w.part not in TRAINING_PARTS)
        model_bytes = sum(w.count * w.dtype.itemsize for w in of_model)
        cached = None if self.config.cache_dir else self._cache_bytes()
        return (self.config.save_stacks + self.config.save_rack) * model_bytes, cached or 0

    def _cache_bytes(self) -> int | None:
        """Return the maximum size of cached activations on disk; None if none are cached."""
        config, stacks = self.config, self.strategy.stacks
        phases = stacks.plan.phases
        if self.strategy.cache_source is None or all(phase.start == 0 for phase in phases):
            return None
        budget = config.cache_size * MEGABYTE
        lengths = getattr(self.trainer.initialize_data(), "lengths", lambda: None)()
        if lengths is None:
            return int(budget)
        _, count = kept_caches(config, phases)
        dtype = CACHE_DTYPES[config.cache_dtype]
        each = bytes_needed(int(lengths.sum()), stacks.rack.hidden_size, dtype)
        return int(min(budget, count * each))

    def trained(self) -> str:
        if not self.config.trains_units_in_turn:
            enabled = self.config.qlora_enabled
            return phrase("stackwise.trains_stacks_low_rank") if enabled else ""
        is_low_rank = self.config.progressive.new_stack_precision == "nf_fp8"
        if self.config.trunk_is_adapted or is_low_rank:
            return phrase("stackwise.trains_stacks_in_turn_low_rank")
        return phrase("stackwise.trains_stacks_in_turn")

    def save(self, folder: Path) -> list[str]:
        """Save all stacks and the whole model, as configured; return messages about failures."""
        state = self.trainer.state
        problems = []
        try:
            for hook in self.trainer.hooks.hooks:
                if isinstance(hook, StackFiles):
                    hook.finish(state)
        except OSError as error:
            problems.append(
                phrase("stackwise.saved_stacks_incomplete", folder=folder / FOLDER, error=error)
            )
        if self.config.save_rack:
            inner = inner_model(state.model)
            weights = each_once(dict(plain_tensors(inner)))
            try:
                save_whole(inner, self.trainer.adapter.tokenizer, folder / RACK, weights)
            except OSError as error:
                problem = phrase("stackwise.rack_not_saved", folder=folder / RACK, error=error)
                problems.append(problem)
        return problems
