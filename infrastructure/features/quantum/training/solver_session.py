"""The solver session of a run: it solves the problems, and stores and reports the decisions.

An answer depends only on the state of the run and its seed, unless a time limit affected it or a
remote machine computed it. A result that depended on a clock is saved at once. All decisions are in
every checkpoint, so a resumed run does what the uninterrupted run would have done.
"""

import copy
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from infrastructure.config.base import ConfigSection
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.error_place import named
from infrastructure.core.messages import Setting, phrase
from infrastructure.features.quantum.config import config_of
from infrastructure.features.quantum.problems.problem import QuantumProblem
from infrastructure.features.quantum.solving.quantum_step import (
    Solution,
    create_chain,
    quantum_solve,
)
from infrastructure.features.quantum.training.block_selection_step import BlockSelectionStep
from infrastructure.features.quantum.training.data_selection_step import DataSelectionStep
from infrastructure.features.quantum.training.decisions import Decisions
from infrastructure.features.quantum.training.overhead_budget import OverheadBudget
from infrastructure.features.quantum.training.step_records import (
    ANSWERED,
    FAILED,
    SKIPPED,
    History,
    QuantumRecord,
    answer_facts,
    in_words,
    numbers_of,
)
from infrastructure.optimization.device_errors import (
    free_memory,
    is_device_fault,
    release_traceback,
)
from infrastructure.training.core.precision import Precision
from infrastructure.training.core.state import TrainingState
from infrastructure.training.loop.session import TrainingSession
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter
from infrastructure.training.recovery.recovery_log import clipped, record_recovery
from infrastructure.training.strategies.base_strategy import TrainingStrategy

log = logging.getLogger(__name__)

QUANTUM_STEP = "quantum_step"  # the kind of its records of recoveries
LEAST_SECONDS = 0.01  # least time limit of a solver; none answers in it, so a baseline is used


class TrainingParts(Protocol):
    """The parts of a trainer that the quantum step needs. They exist once the run has begun."""

    training_config: TrainingConfig
    sections: Mapping[str, ConfigSection]
    adapter: ModelAdapter
    strategy: TrainingStrategy

    @property
    def precision(self) -> Precision: ...

    def initialize_data(self) -> DataSource: ...

    def prepare(self) -> TrainingSession: ...


class SolverSession:
    """The solver of one run's problems, which the quantum extension calls.

    Args:
        trainer: its parts are used after the run has begun.
        clock: a monotonic clock in seconds.

    Attributes:
        decisions: the current decisions.
        history: a record of each step.
        report: shows a line to the user.
        without_answer: returns a description of what the run does until a decision is made; "":
            as usual.
        unlogged: numbers of the latest answers that are not in the metrics yet.

    Raises:
        ValueError: a sampler name is unknown.
        MissingPackageError: the package of a sampler is not installed.
    """

    def __init__(self, trainer: TrainingParts, clock: Callable[[], float] = time.monotonic) -> None:
        self.trainer, self.clock = trainer, clock
        self.config = config_of(trainer)
        self.frequency = trainer.training_config.optimization_frequency
        self.decisions, self.history = Decisions(), History()
        self.chain = create_chain(self.config)
        self.cost = OverheadBudget.of(self.config.max_overhead_percent, self.frequency, clock)
        self.num_steps = 0
        self.last_step: int | None = None
        self.last_phase = 0
        self._began = 0.0
        self.report: Callable[[str], None] = lambda line: log.info("%s", line)
        self.without_answer: Callable[[], str] = str
        self.unlogged: dict[str, float] = {}

    @property
    def solver_seconds(self) -> float | None:
        """The solver time of the last answer in seconds; None before the first answer."""
        newest = self.history.newest()
        return None if newest is None else newest.get("solver_seconds")

    def state_dict(self) -> dict[str, object]:
        """Return the session's state for a checkpoint, as JSON values."""
        return {
            "decisions": self.decisions.state_dict(),
            "history": self.history.state_dict(),
            "num_asked": self.num_steps,
            "asked_step": self.last_step,
            "asked_phase": self.last_phase,
            "untold": dict(self.unlogged),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.decisions.load_state_dict(saved["decisions"])
        self.history.load_state_dict(saved["history"])
        self.num_steps = saved["num_asked"]
        self.last_step = saved["asked_step"]
        self.last_phase = saved["asked_phase"]
        self.unlogged = dict(saved["untold"])

    def run(self, state: TrainingState, decide: Callable[[], None]) -> None:
        """Run one quantum step. If it fails, training continues unchanged.

        Raises:
            Exception: the GPU failed.
        """
        self._began = self.clock()
        self.last_step, self.last_phase = state.step, state.position.phase
        self.num_steps += 1
        has_failed = False
        try:
            decide()
        except Exception as error:
            if is_device_fault(error):
                raise
            has_failed = True
            self._has_failed(state, error)
            release_traceback(error)
        finally:
            self.cost.pay(self.seconds_so_far)
        if has_failed:
            free_memory(self.trainer.adapter.device)

    @property
    def seconds_so_far(self) -> float:
        """The seconds since the current quantum step began."""
        return self.clock() - self._began

    @property
    def seed(self) -> int:
        """The seed of the current quantum step; each step has a different one."""
        return (self.trainer.training_config.seed * 1_000_003 + self.num_steps) % 2**31

    def solve(
        self,
        state: TrainingState,
        step: BlockSelectionStep | DataSelectionStep,
        problem: QuantumProblem,
        predicted_seconds: float,
        allowed_seconds: float,
    ) -> None:
        """Solve a problem, apply the decision and report it.

        If an error occurs, nothing is applied.

        Args:
            predicted_seconds: predicted time of the whole step.
            allowed_seconds: time limit since `run` began; a solver is ended then.
        """
        if self.cost.never_skips:
            allowed_seconds = math.inf
        solution = self._solution_of(problem, allowed_seconds - self.seconds_so_far)
        decisions = copy.copy(self.decisions)
        chosen = step.apply(problem, solution.decision, decisions)
        solved: QuantumRecord = {
            **self._record(state),
            "foretold_seconds": predicted_seconds,
            "allowed_seconds": None if math.isinf(allowed_seconds) else allowed_seconds,
            **chosen,
            **answer_facts(solution),
            "facts": problem.facts(),
            "outcome": ANSWERED,
            "seconds": round(self.seconds_so_far, 3),
        }
        self.decisions = decisions
        if solution.failures:
            message = "; ".join(solution.failures)
            record_recovery(
                state,
                QUANTUM_STEP,
                phrase("quantum.answer_of_other_solver_used", name=solution.answered_by),
                message,
            )
            state.must_save = True
        state.must_save |= bool(solution.info.get("bound_hit"))
        self._report(solved)

    def _solution_of(self, problem: QuantumProblem, seconds: float) -> Solution:
        least = max(LEAST_SECONDS, min(self.config.timeout, seconds))
        config = self.config.model_copy(update={"timeout": least})
        solution = quantum_solve(problem, config, seed=self.seed, chain=self.chain)
        if not solution.info.get("bound_hit") or least == self.config.timeout:
            return solution
        bound = format(Setting("quantum.max_overhead_percent", f"{self.cost.percent:g}"))
        remark = phrase("quantum.solver_time_cut_by_budget", limit=bound, seconds=least)
        return replace(solution, remarks=[*solution.remarks, remark])

    def _record(self, state: TrainingState) -> QuantumRecord:
        return {
            "step": state.step,
            "epoch": state.position.epoch,
            "problem": self.config.problem,
        }

    def record_own_answer(self, state: TrainingState, problem: str, solution: Solution) -> None:
        """Record an answer that a custom loop requested and applied."""
        self.num_steps += 1
        self.last_step, self.last_phase = state.step, state.position.phase
        self._report(
            {
                **self._record(state),
                **answer_facts(solution),
                "problem": problem,
                "outcome": ANSWERED,
                "chosen": f"{len(solution.decision)} chosen",
                "seconds": solution.seconds,
            }
        )

    def skip(self, state: TrainingState, why: str) -> None:
        """Record that the quantum step is skipped this time, with the reason."""
        state.must_save = True  # the decision depended on a clock
        self._report({**self._record(state), "outcome": SKIPPED, "why": self._complete(why)})

    def _has_failed(self, state: TrainingState, error: Exception) -> None:
        why = clipped(named(error))
        record_recovery(state, QUANTUM_STEP, phrase("quantum.step_failed_training_continues"), why)
        state.must_save = True
        self._report({**self._record(state), "outcome": FAILED, "why": self._complete(why)})

    def _complete(self, why: str) -> str:
        return "; ".join(filter(None, (why, self.without_answer())))

    def _report(self, record: QuantumRecord) -> None:
        kept = self.history.add(record)
        self.unlogged |= numbers_of(kept)
        self.report(in_words(kept))
