"""The quantum step inside a training: when it is asked, what it may cost, what its answer changes.

Data selection is asked where an epoch begins: before the training, and then at the first epoch that
begins `optimization_frequency` steps or more after the last answer. Blocks are chosen in a step
whose gradients are those of all blocks, LoRA components once.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from infrastructure.config.sections.quantum_config import (
    BLOCK_SELECTION,
    DATA_SELECTION,
    RANK_ALLOCATION,
)
from infrastructure.monitoring.drawing.formatting import format_duration, format_number
from infrastructure.quantum.quantum_step import close_chain
from infrastructure.training.core.state import TrainingState
from infrastructure.training.data.data_pipeline import DataPipeline
from infrastructure.training.quantum.asking import Asking
from infrastructure.training.quantum.blocks import forget_moments, train_only
from infrastructure.training.quantum.components import keep_only
from infrastructure.training.quantum.cost_bound import too_dear
from infrastructure.training.quantum.data_question import DataQuestion
from infrastructure.training.quantum.decisions import Ids, packed, unpacked
from infrastructure.training.quantum.step_questions import (
    BlockQuestion,
    RankQuestion,
    StepQuestion,
)


class QuantumExtension(Asking):
    """See above.

    Attributes:
        in_force: ids of the examples of the present epoch; None: those drawn by chance before any
            were selected. A selection that is decided later counts from the next epoch on.
    """

    _is_in_loop = _asks_in_step = False
    in_force: Ids | None = None

    def state_dict(self) -> dict[str, Any]:
        is_newest = _are_same(self.in_force, self.decisions.selection)
        before = None if is_newest or self.in_force is None else packed(self.in_force)
        return {**super().state_dict(), "is_newest_in_force": is_newest, "in_force": before}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        super().load_state_dict(saved)
        before = saved["in_force"]
        self.in_force = None if before is None else unpacked(before)
        if saved["is_newest_in_force"]:
            self.in_force = self.decisions.selection

    def epoch_start(self, state: TrainingState) -> None:
        if self.config.problem != DATA_SELECTION:
            return
        if state.position.example == 0:
            self.take_answer(state)
            if self._is_due(state):
                self.ask(state, lambda: self._ask_for_data(state))
        self.hold_selection(state)

    def train_start(self, state: TrainingState) -> None:
        self._is_in_loop = True

    def phase_start(self, state: TrainingState) -> None:
        """The phase has switched on all that trains in it."""
        if self.decisions.blocks is not None:
            train_only(state, self.decisions.blocks)

    def step_start(self, state: TrainingState) -> None:
        self.cost.step_begins()
        if self._is_in_loop and self.config.problem != DATA_SELECTION:
            self.take_answer(state)
            self._asks_in_step = self._is_due(state)
        if self.decisions.blocks is not None:
            all_of_them = self._asks_in_step and self.config.problem == BLOCK_SELECTION
            train_only(state, None if all_of_them else self.decisions.blocks)

    def after_backward(self, state: TrainingState) -> None:
        if self._asks_in_step:
            self.ask(state, lambda: self._ask_in_step(state))
            self._asks_in_step = False
            if self.config.problem == BLOCK_SELECTION:
                train_only(state, self.decisions.blocks)

    def step_end(self, state: TrainingState) -> None:
        """Weights and the optimizer's state change now: in no other moment can a checkpoint of the
        last boundary hold what has changed since."""
        self.cost.step_has_ended()
        keep_only(state.model, self.decisions.kept)
        forget_moments(state, self.decisions.blocks)
        if state.metrics and self.untold:
            state.metrics.update(self.untold)
            self.untold = {}

    def carry_out(self, state: TrainingState) -> None:
        """What was decided between two steps, in somebody's own loop."""
        train_only(state, self.decisions.blocks)
        forget_moments(state, self.decisions.blocks)
        keep_only(state.model, self.decisions.kept)
        if self.config.problem == DATA_SELECTION:
            self.hold_selection(state)

    def train_end(self, state: TrainingState) -> None:
        self._is_in_loop = False
        self.tell_unused(state)
        self.stop_waiting()
        close_chain(self.chain)

    # When

    def _is_due(self, state: TrainingState) -> bool:
        if self.waiting is not None:
            return False
        if self.asked_step is None:
            is_late = self.config.problem == RANK_ALLOCATION
            return not is_late or state.step >= (self.frequency or state.total_steps // 2)
        if self.config.problem == BLOCK_SELECTION and self.asked_phase != state.position.phase:
            return True  # other blocks train than those that were chosen from
        if self.frequency is None or self.config.problem == RANK_ALLOCATION:
            return False
        return state.step - self.asked_step >= self.frequency

    def _steps_ahead(self, state: TrainingState) -> int:
        """How many steps the next answer is for."""
        left = max(1, state.total_steps - state.step)
        return left if self.frequency is None else min(left, self.frequency)

    @property
    def _data(self) -> DataPipeline:
        assert isinstance(self.trainer.data, DataPipeline)  # it was limited when it was made
        return self.trainer.data

    def hold_selection(self, state: TrainingState) -> None:
        """Let the data source give what is selected: where an epoch begins, the newest."""
        if state.position.example == 0:
            self.in_force = self.decisions.selection
        if self.in_force is None:
            self._data.unselect()
        elif not _are_same(self.in_force, self._data.selected):
            self._data.select(self.in_force)

    def check_selection(self, ids: Sequence[int]) -> None:
        """Refuse what the data source could not give.

        Raises:
            ValueError: this training selects nothing, or not so many, or no such examples.
        """
        if self.config.problem != DATA_SELECTION:
            raise ValueError(
                f"quantum.problem {self.config.problem} selects no examples: data_selection does,"
                " and quantum.data_budget says how many"
            )
        self._data.check_selection(ids)

    def data_question(self, state: TrainingState) -> DataQuestion:
        """Which examples this training shall train on."""
        return DataQuestion(
            self.config,
            state.model,
            self.trainer.adapter,
            self.trainer.strategy,
            self.trainer.precision,
            self._data,
            self.trainer.prepare().optimizer_step.optimizer,
            state.micro_batch_size,
            self.seed,
        )

    def _ask_for_data(self, state: TrainingState) -> None:
        loop, question = self.trainer.prepare(), self.data_question(state)
        most = self.resources.most_candidates
        if not question.has_choice(most):
            self.skip(state, question.nothing_to_leave_out(most))
            return
        costs = question.costs()
        step_seconds = self.cost.step_seconds or costs.training * loop.global_batch_size
        allowed = self.cost.allowed_seconds(self._steps_ahead(state), step_seconds)
        number = question.num_candidates(costs, allowed, most)
        if number == 0:
            wanted = question.num_wanted(most)
            cost = question.cost_seconds(costs, wanted)
            self.skip(state, too_dear(cost, allowed, self.cost.percent))
            return
        foretold = question.cost_seconds(costs, number)
        share = 100 * foretold / (step_seconds * self._steps_ahead(state))
        is_solvers_limit = most < self.resources.max_qubits and number == most
        limit = f" ({self.resources.solver} takes no more)" if is_solvers_limit else ""
        is_whole = number == min(most, self._data.num_candidates)
        self.say(
            f"Quantum step: looking at {number:,} of {self._data.num_candidates:,} training"
            f" examples{limit}, which takes about {format_duration(foretold)},"
            f" {format_number(share, 2)} % of the training steps that it is for"
        )
        state.must_save |= self.config.candidates == "auto" and not is_whole
        problem = question.problem(number)
        self.solve(state, question, problem, foretold_seconds=foretold, allowed_seconds=allowed)

    def step_question(self, state: TrainingState, number: int) -> StepQuestion:
        """What is asked about the last batch; `number` were asked before."""
        assert state.optimizer is not None
        is_about_blocks = self.config.problem == BLOCK_SELECTION
        return (BlockQuestion if is_about_blocks else RankQuestion)(
            self.config,
            state.model,
            self.trainer.adapter,
            self.trainer.precision,
            self.trainer.data,
            state.optimizer,
            state.batch,
            state.micro_batch_size,
            self.trainer.training_config.seed,
            number,
        )

    def _ask_in_step(self, state: TrainingState) -> None:
        question = self.step_question(state, self.num_asked - 1)
        taken = self.cost.seconds_so_far
        foretold = question.cost_seconds(taken)
        step_seconds = self.cost.step_seconds or taken
        allowed = self.cost.allowed_seconds(self._steps_ahead(state), step_seconds)
        if foretold > allowed:
            self.skip(state, too_dear(foretold, allowed, self.cost.percent))
            return
        problem = question.problem()
        self.solve(state, question, problem, foretold_seconds=foretold, allowed_seconds=allowed)


def _are_same(one: Ids | None, other: Ids | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)
