"""The quantum step inside a run: when it runs, how much time it may take, and its effects.

Data selection runs at the start of an epoch: before the first step, and then at the first epoch
that begins `optimization_frequency` steps or more after the last answer. Blocks are chosen in a
step for which all blocks have gradients.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infrastructure.core.console import details
from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.features.quantum.config import (
    BLOCK_SELECTION,
    DATA_SELECTION,
    config_of,
)
from infrastructure.features.quantum.solving.quantum_step import close_chain
from infrastructure.features.quantum.training.block_selection_step import (
    BlockSelectionStep,
    check_blocks,
)
from infrastructure.features.quantum.training.data_selection_step import (
    DataSelectionStep,
    limit_data,
)
from infrastructure.features.quantum.training.decisions import Ids, packed, unpacked
from infrastructure.features.quantum.training.freeze_blocks import (
    forget_optimizer_moments,
    train_only,
)
from infrastructure.features.quantum.training.overhead_budget import over_budget, too_few_steps
from infrastructure.features.quantum.training.records_observer import QuantumRecords
from infrastructure.features.quantum.training.solver_session import SolverSession, TrainingParts
from infrastructure.monitoring.drawing.formatting import format_duration
from infrastructure.monitoring.training_monitor import Probe
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Extension, Observer
from infrastructure.training.model_adapters.base_adapter import DataSource

LONG_SECONDS = 5.0  # a step at least this long is announced


class QuantumExtension(Extension):
    """The extension that runs quantum steps when they are due, and applies their decisions.

    Args:
        trainer: its parts are used after the run has begun.
        clock: a monotonic clock in seconds.

    Attributes:
        session: solves the problems and stores the decisions.
        in_force: ids of the current epoch's examples; None: the random draw that is used before any
            selection. A selection decided later takes effect at the next epoch.
    """

    def __init__(self, trainer: TrainingParts, clock: Callable[[], float] = time.monotonic) -> None:
        self.trainer = trainer
        self.config = config_of(trainer)
        self.frequency = trainer.training_config.optimization_frequency
        self.session = SolverSession(trainer, clock)
        self.session.without_answer = self._drawn_by_chance
        self.in_force: Ids | None = None
        self._is_in_loop = self._decides_in_step = False

    @property
    def name(self) -> str:
        return "quantum"

    def inspect(self, data: DataSource, model: torch.nn.Module) -> None:
        """Apply the data budget, and check that the run has something to choose from.

        This is called before the run's length is computed.

        Raises:
            ValueError: examples cannot be selected, or there are too few blocks.
        """
        limit_data(data, self.config)
        check_blocks(self.config, model)

    def state_dict(self) -> dict[str, object]:
        is_newest = _are_same(self.in_force, self.session.decisions.selection)
        before = None if is_newest or self.in_force is None else packed(self.in_force)
        return {**self.session.state_dict(), "is_newest_in_force": is_newest, "in_force": before}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.session.load_state_dict(saved)
        before = saved["in_force"]
        self.in_force = None if before is None else unpacked(before)
        if saved["is_newest_in_force"]:
            self.in_force = self.session.decisions.selection

    def epoch_start(self, state: TrainingState) -> None:
        if self.config.problem != DATA_SELECTION:
            return
        if state.position.example == 0:
            self._decided_by_first(lambda: self._decide_at_epoch(state))
        self.hold_selection(state)

    def train_start(self, state: TrainingState) -> None:
        self._is_in_loop = True

    def phase_start(self, state: TrainingState) -> None:
        """Freeze the blocks that were not chosen.

        This is needed because a new phase makes all of its blocks trainable.
        """
        if self.session.decisions.blocks is not None:
            train_only(state, self.session.decisions.blocks)

    def step_start(self, state: TrainingState) -> None:
        self.session.cost.step_begins()
        if self._is_in_loop and self.config.problem != DATA_SELECTION:
            self._decided_by_first(lambda: self._look_before_step(state))
        if self.session.decisions.blocks is not None:
            train_only(state, None if self._decides_in_step else self.session.decisions.blocks)

    def after_backward(self, state: TrainingState) -> None:
        if self._decides_in_step:
            self._decided_by_first(
                lambda: self.session.run(state, lambda: self._decide_in_step(state))
            )
            self._decides_in_step = False
            train_only(state, self.session.decisions.blocks)

    def step_end(self, state: TrainingState) -> None:
        """Drop the optimizer state of frozen blocks.

        The optimizer state is changed only here, because otherwise a checkpoint of the previous
        step could already contain the change.
        """
        self.session.cost.step_has_ended()
        forget_optimizer_moments(state, self.session.decisions.blocks)
        if state.metrics and self.session.unlogged:
            state.metrics.update(self.session.unlogged)
            self.session.unlogged = {}

    def carry_out(self, state: TrainingState) -> None:
        """Apply decisions that were made between two steps of a custom loop."""
        train_only(state, self.session.decisions.blocks)
        forget_optimizer_moments(state, self.session.decisions.blocks)
        if self.config.problem == DATA_SELECTION:
            self.hold_selection(state)

    def train_end(self, state: TrainingState) -> None:
        self._is_in_loop = False
        close_chain(self.session.chain)

    def recorders(self, run_directory: Path, report: Callable[[str], None]) -> list[Observer]:
        self.session.report = report
        return [QuantumRecords(run_directory, self.session)]

    def probes(self) -> dict[str, Probe]:
        return {"quantum_solver_seconds": lambda: self.session.solver_seconds}

    def forecast_known(self, step_seconds: float) -> None:
        self.session.cost.forecast_step_seconds = step_seconds  # the cost limit is a share of it

    # When

    def _decided_by_first(self, work: Callable[[], None]) -> None:
        """Run `work` on rank 0, and send the resulting decisions to every rank."""

        def decide() -> dict[str, Any]:
            before = self.session.decisions
            work()
            is_new = self.session.decisions is not before
            return {
                "decides_in_step": self._decides_in_step,
                "decisions": self.session.decisions.state_dict() if is_new else None,
            }

        group = self.trainer.prepare().loop.optimizer_step.group
        decided = group.decide(decide)
        if not group.is_first:
            self._decides_in_step = decided["decides_in_step"]
            if decided["decisions"] is not None:
                self.session.decisions.load_state_dict(decided["decisions"])

    def _decide_at_epoch(self, state: TrainingState) -> None:
        if self._is_due(state):
            self.session.run(state, lambda: self._select_data(state))

    def _look_before_step(self, state: TrainingState) -> None:
        self._decides_in_step = self._is_due(state)

    def _is_due(self, state: TrainingState) -> bool:
        if self.session.last_step is None:
            return True
        if (
            self.config.problem == BLOCK_SELECTION
            and self.session.last_phase != state.position.phase
        ):
            return True  # a new phase has other blocks to choose from
        if self.frequency is None:
            return False
        return state.step - self.session.last_step >= self.frequency

    def _steps_ahead(self, state: TrainingState) -> int:
        """Return the number of training steps until the next quantum step replaces the decision."""
        left = max(1, state.total_steps - state.step)
        return left if self.frequency is None else min(left, self.frequency)

    @property
    def _data(self) -> DataPipeline:
        data = self.trainer.initialize_data()
        assert isinstance(data, DataPipeline)  # `check` has verified it
        return data

    def _drawn_by_chance(self) -> str:
        """Return a note that the examples are a random draw, or "" if they are not.

        Without the note, users could think that all examples are used, or selected examples.
        """
        if self.config.problem != DATA_SELECTION or self.session.decisions.selection is not None:
            return ""
        number, whole = self._data.num_examples, self._data.num_candidates
        if number == whole:
            return ""
        return phrase(
            "quantum.examples_drawn_at_random",
            selected=number,
            total=whole,
            data_budget=self.config.data_budget,
        )

    def hold_selection(self, state: TrainingState) -> None:
        """Apply the current selection of examples to the data source.

        At the start of an epoch, the latest selection becomes the current one.
        """
        if state.position.example == 0:
            self.in_force = self.session.decisions.selection
        if self.in_force is None:
            self._data.unselect()
        elif not _are_same(self.in_force, self._data.selected):
            self._data.select(self.in_force)

    def check_selection(self, ids: Sequence[int]) -> None:
        """Check that the data source can provide a selection.

        Raises:
            ValueError: this run does not select examples, or not that many, or an id is invalid.
        """
        if self.config.problem != DATA_SELECTION:
            raise InputError("quantum.problem_selects_no_examples", problem=self.config.problem)
        self._data.check_selection(ids)

    def data_selection_step(self, state: TrainingState) -> DataSelectionStep:
        """Create the quantum step that selects the examples of this run."""
        return DataSelectionStep(
            config=self.config,
            model=state.model,
            adapter=self.trainer.adapter,
            strategy=self.trainer.strategy,
            precision=self.trainer.precision,
            data=self._data,
            optimizer=self.trainer.prepare().loop.optimizer_step.optimizer,
            micro_batch_size=state.micro_batch_size,
            seed=self.session.seed,
        )

    def _select_data(self, state: TrainingState) -> None:
        loop, step = self.trainer.prepare().loop, self.data_selection_step(state)
        most = self.config.most_candidates
        if not step.has_choice(most):
            self.session.skip(state, step.nothing_to_leave_out(most))
            return
        budget, num_steps = self.session.cost, self._steps_ahead(state)
        step_seconds = budget.step_seconds
        least = step.least_steps(loop.global_batch_size, measures_training=step_seconds is None)
        if not budget.never_skips and least > budget.allowed_steps(num_steps):
            self.session.skip(state, too_few_steps(least, num_steps, budget.percent))
            return
        gradient_seconds = step.gradient_seconds()
        if step_seconds is None:
            step_seconds = step.training_seconds() * loop.global_batch_size
        spent = self.session.seconds_so_far
        allowed = budget.allowed_seconds(num_steps, step_seconds)
        number = step.num_candidates(
            gradient_seconds, allowed - spent, most, never_skips=budget.never_skips
        )
        if number == 0:
            cost = spent + step.cost_seconds(gradient_seconds, step.num_wanted(most))
            self.session.skip(state, over_budget(cost, allowed, budget.percent))
            return
        predicted = spent + step.cost_seconds(gradient_seconds, number)
        is_solvers_limit = most < self.config.max_qubits and number == most
        limit = ""
        if is_solvers_limit:
            limit = phrase("quantum.solver_limit", solver=self.config.solver)
        is_whole = number == min(most, self._data.num_candidates)
        is_long = predicted >= LONG_SECONDS
        (self.session.report if is_long else details(self.session.report))(
            phrase(
                "quantum.examining_training_examples",
                count=number,
                total=self._data.num_candidates,
                limit=limit,
                duration=format_duration(predicted),
            )
        )
        state.must_save |= self.config.candidates == "auto" and not is_whole
        problem = step.problem(number)
        self.session.solve(state, step, problem, predicted, allowed)

    def _decide_in_step(self, state: TrainingState) -> None:
        assert state.optimizer is not None
        step = BlockSelectionStep(
            config=self.config,
            model=state.model,
            adapter=self.trainer.adapter,
            precision=self.trainer.precision,
            optimizer=state.optimizer,
            examples=state.batch,
            micro_batch_size=state.micro_batch_size,
            seed=self.trainer.training_config.seed,
            number=self.session.num_steps - 1,  # quantum steps before this one
        )
        taken = self.session.cost.seconds_so_far
        predicted = step.cost_seconds(taken)
        step_seconds = self.session.cost.step_seconds or taken
        allowed = self.session.cost.allowed_seconds(self._steps_ahead(state), step_seconds)
        if not self.session.cost.never_skips and predicted > allowed:
            self.session.skip(state, over_budget(predicted, allowed, self.session.cost.percent))
            return
        problem = step.problem()
        self.session.solve(state, step, problem, predicted, allowed)


def _are_same(one: Ids | None, other: Ids | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)
