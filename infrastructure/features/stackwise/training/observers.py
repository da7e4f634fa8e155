"""Observers that record a block-wise run: the first step of each phase, and each stack."""

import logging
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infrastructure.core.checksums import write_record
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.features.stackwise.report import STACKWISE_FILE
from infrastructure.features.stackwise.training.phase_costs import PlanCosts
from infrastructure.features.stackwise.training.stack_files import (
    ABOVE,
    BELOW,
    LAYERS,
    StackRecord,
    remove_others,
    shapes_hash,
    stack_tensors,
    write_stack,
)
from infrastructure.features.stackwise.training.stack_phases import StackPhase, Unit
from infrastructure.models.model_inputs import inner_model
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer

logger = logging.getLogger(__name__)


class PhaseRecords(Observer):
    """An observer that writes `stackwise.json`: the plan, and the step at which each phase began.

    Args:
        plan: returns the costs of the planned phases, or None if they cannot be determined.
    """

    def __init__(self, run_directory: Path, plan: Callable[[], PlanCosts | None]) -> None:
        self.path, self.plan = run_directory / STACKWISE_FILE, plan
        self._began: dict[int, int] = {}  # phase → step

    def train_start(self, state: TrainingState) -> None:
        self._write()

    def phase_start(self, state: TrainingState) -> None:
        """Record the first step of a phase, also after a resume or a rollback."""
        index = state.position.phase
        began = {phase: step for phase, step in self._began.items() if phase <= index}
        began[index] = min(state.step, began.get(index, state.step))
        if began != self._began:
            self._began = began
            self._write()

    def state_dict(self) -> dict[str, object]:
        return {"began": {str(phase): step for phase, step in self._began.items()}}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self._began = {int(phase): step for phase, step in saved["began"].items()}

    def _write(self) -> None:
        plan = self.plan()
        if plan is None:
            return
        began = [{"phase": phase, "step": step} for phase, step in sorted(self._began.items())]
        try:
            write_record(self.path, {"plan": asdict(plan), "began": began})
        except OSError as error:  # only informative: the training's checkpoints have the data
            logger.warning(phrase("training.file_incomplete", name=self.path, error=error))


class StackFiles(Observer):
    """An observer that writes each finished stack to a folder, and all of them at the end.

    After a disk error, files are missing, but training continues.

    Args:
        strategy: the run's `StackwiseStrategy`. Its model is prepared when the first phase ends.
        training: returns the settings that decide the result, and the data's fingerprint.
    """

    def __init__(self, folder: Path, strategy: Any, training: Callable[[], JsonObject]) -> None:
        self.folder, self.strategy, self.training = folder, strategy, training
        self._ended: dict[int, dict[str, Any]] = {}  # unit → step and loss
        self._shapes: str | None = None

    def phase_end(self, state: TrainingState) -> None:
        plan, index = self.strategy.stacks.plan, state.position.phase
        unit = plan.phases[index].unit
        ended = {"step": state.step, "loss": _finite(state.loss)}
        if unit is None:
            self._ended = {one.index: ended for one in plan.units}
            return
        later = plan.phases[index + 1 :]
        if any(phase.unit == unit for phase in later):  # its next time step follows
            return
        self._ended[unit.index] = ended
        try:
            self._write(unit, self._holds(unit, plan.phases[: index + 1]), None)
        except OSError as error:
            logger.warning(phrase("stackwise.stack_not_written", index=unit.index, error=error))

    def finish(self, state: TrainingState) -> None:
        """Write all stacks at the end of the run. Identical files are not written again.

        Raises:
            OSError: the disk returns an error.
        """
        plan, index = self.strategy.stacks.plan, state.position.phase
        if index < len(plan.phases):  # it has ended early: fewer steps were requested
            unit = plan.phases[index].unit
            for one in plan.units if unit is None else [unit]:
                self._ended.setdefault(one.index, {"step": None, "loss": _finite(state.loss)})
        if self.folder.is_dir():
            remove_others(self.folder, len(plan.units))
        for unit in plan.units:
            self._write(unit, self._holds(unit, plan.phases), state.step)

    def state_dict(self) -> dict[str, object]:
        return {"ended": {str(unit): facts for unit, facts in self._ended.items()}}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self._ended = {int(unit): facts for unit, facts in saved["ended"].items()}

    def _holds(self, unit: Unit, phases: list[StackPhase]) -> list[str]:
        """Return the parts of the model that a unit's file contains after some phases.

        The part above the layers is in the file of the last unit, and in the file of the last unit
        that trained together with this part.
        """
        stacks = self.strategy.stacks
        above = set(stacks.rack.above)
        trained_top = [p.unit for p in phases if p.unit and above & (p.parameters or above)]
        has_top = unit == stacks.plan.units[-1] or trained_top[-1:] == [unit]
        holds = [LAYERS]
        if unit.index == 0:
            holds.append(BELOW)
        if has_top:
            holds.append(ABOVE)
        return holds

    def _write(self, unit: Unit, holds: list[str], final_step: int | None) -> None:
        plan, rack = self.strategy.stacks.plan, self.strategy.stacks.rack
        if self._shapes is None:
            self._shapes = shapes_hash(rack)
        steps = [p.time_step for p in plan.phases if p.unit == unit and p.time_step is not None]
        record = StackRecord(
            stack=unit.index,
            num_stacks=len(plan.units),
            first_layer=unit.first,
            end_layer=unit.last,
            num_layers=len(rack),
            holds=holds,
            sha256="",
            model={"class": type(inner_model(rack.model)).__name__, "shapes": self._shapes},
            training=self.training(),
            time_steps=sorted(set(steps)),
            final_step=final_step,
            **self._ended.get(unit.index, {}),
        )
        write_stack(self.folder, stack_tensors(rack, unit, holds), record)


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None
