"""Has the questions of a training answered, keeps what was decided, and tells of it.

An answer is a function of the training's state and its seed, unless a clock cut it off, or another
machine gave it. What depended on a clock is saved at once; whatever was decided travels in every
checkpoint, so a training that goes on does what it would have done.
"""

import copy
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from infrastructure.config.sections.quantum_config import SAMPLER, QuantumConfig
from infrastructure.config.sections.resource_config import QuantumResources
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.quantum.problems.problem import QuantumProblem
from infrastructure.quantum.quantum_step import (
    Solution,
    create_chain,
    quantum_solve,
)
from infrastructure.training.core.error_handlers import free_memory, is_device_fault, let_go
from infrastructure.training.core.precision import Precision
from infrastructure.training.core.state import RecoveryKind, TrainingState
from infrastructure.training.extensions.extension_hooks import Extension
from infrastructure.training.loop.loop import TrainingLoop
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter
from infrastructure.training.quantum.background import BackgroundSolve
from infrastructure.training.quantum.cost_bound import CostBound
from infrastructure.training.quantum.decisions import Decisions
from infrastructure.training.quantum.history import (
    ANSWERED,
    ASKED,
    FAILED,
    SKIPPED,
    UNUSED,
    History,
    Record,
    answer_facts,
    in_words,
    numbers_of,
)
from infrastructure.training.quantum.plain_answer import plain_solution
from infrastructure.training.recovery.recovery_log import clipped, record_recovery
from infrastructure.training.strategies.base_strategy import TrainingStrategy

log = logging.getLogger(__name__)

LEAST_SECONDS = 0.01  # that a solver is given; none answers in it, and the plain answers stand in


class TrainingParts(Protocol):
    """What the quantum step needs of a trainer, whose parts are there when a training begins."""

    training_config: TrainingConfig
    quantum_config: QuantumConfig
    quantum_resources: QuantumResources
    adapter: ModelAdapter
    strategy: TrainingStrategy
    precision: Precision
    data: DataSource | None

    def prepare(self) -> TrainingLoop: ...


class AskedQuestion(Protocol):
    """A question that was asked, when its answer is there."""

    def use(self, problem: QuantumProblem, decision: Any, decisions: Decisions) -> dict[str, Any]:
        """Let an answer hold; returns what was chosen, for people."""


@dataclass
class Waiting:
    """A question that another process is at."""

    background: BackgroundSolve
    question: AskedQuestion
    record: Record


class Asking(Extension):
    """What is the same for all questions; when and what is asked is said by whoever extends this.

    Args:
        trainer: is asked for its parts when the training has begun.
        clock: seconds that never go back.

    Attributes:
        decisions: what holds now.
        history: a record of each step.
        say: shows a line to a person.
        untold: numbers of the newest answers, which the metrics do not hold yet.

    Raises:
        ValueError, MissingPackageError: there is no sampler of such a name, or not here.
    """

    def __init__(self, trainer: TrainingParts, clock: Callable[[], float] = time.monotonic) -> None:
        self.trainer, self.clock = trainer, clock
        self.config, self.resources = trainer.quantum_config, trainer.quantum_resources
        self.frequency = trainer.training_config.optimization_frequency
        self.decisions, self.history = Decisions(), History()
        self.chain = create_chain(self.resources)
        self.cost = CostBound(self.config.max_overhead_percent, clock)
        self.num_asked = 0
        self.asked_step: int | None = None
        self.asked_phase = 0
        self.waiting: Waiting | None = None
        self._began = 0.0
        self.say: Callable[[str], None] = lambda line: log.info("%s", line)
        self.untold: dict[str, float] = {}

    @property
    def name(self) -> str:
        return "quantum"

    @property
    def solver_seconds(self) -> float | None:
        """What the last answer took a sampler; None before there is one."""
        newest = self.history.newest()
        return None if newest is None else newest.get("solver_seconds")

    def state_dict(self) -> dict[str, Any]:
        return {
            "decisions": self.decisions.state_dict(),
            "history": self.history.state_dict(),
            "num_asked": self.num_asked,
            "asked_step": self.asked_step,
            "asked_phase": self.asked_phase,
            "untold": dict(self.untold),
            "is_waiting": self.waiting is not None,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """A question that another process was at is asked again: its numbers are gone."""
        self.stop_waiting()
        self.decisions.load_state_dict(saved["decisions"])
        self.history.load_state_dict(saved["history"])
        self.num_asked = saved["num_asked"]
        self.asked_step = None if saved["is_waiting"] else saved["asked_step"]
        self.asked_phase = saved["asked_phase"]
        self.untold = dict(saved["untold"])

    def ask(self, state: TrainingState, ask: Callable[[], None]) -> None:
        """Have a question asked; whatever goes wrong, the training goes on as it was.

        Raises:
            Exception: the GPU failed.
        """
        self._began = self.clock()
        self.asked_step, self.asked_phase = state.step, state.position.phase
        self.num_asked += 1
        has_failed = False
        try:
            ask()
        except Exception as error:
            if is_device_fault(error):
                raise
            has_failed = True
            self._has_failed(state, error)
            let_go(error)
        finally:
            self.cost.pay(self.clock() - self._began)
        if has_failed:
            free_memory(self.trainer.adapter.device)

    @property
    def seed(self) -> int:
        """Of the question that is asked now: another one for each."""
        return (self.trainer.training_config.seed * 1_000_003 + self.num_asked) % 2**31

    def solve(
        self,
        state: TrainingState,
        question: AskedQuestion,
        problem: QuantumProblem,
        *,
        foretold_seconds: float,
        allowed_seconds: float,
    ) -> None:
        """Have a problem answered, here or beside the training.

        Args:
            allowed_seconds: since the question was begun with; here, a solver is ended then.
        """
        known = {"foretold_seconds": foretold_seconds, "allowed_seconds": allowed_seconds}
        record = {**self._record(state), **known}
        if self.config.background and self.config.answer == SAMPLER:
            background = BackgroundSolve(problem, self.resources, self.seed)
            self.waiting = Waiting(background, question, record)
            self._tell({**record, "outcome": ASKED})
            return
        left = allowed_seconds - (self.clock() - self._began)
        self._use(state, question, problem, self._solution_of(problem, left), record)

    def _solution_of(self, problem: QuantumProblem, seconds: float) -> Solution:
        if self.config.answer != SAMPLER:
            return plain_solution(problem, self.config.answer)
        least = max(LEAST_SECONDS, min(self.resources.timeout, seconds))
        resources = self.resources.model_copy(update={"timeout": least})
        solution = quantum_solve(problem, resources, seed=self.seed, chain=self.chain)
        if not solution.info.get("bound_hit") or least == self.resources.timeout:
            return solution
        bound = f"quantum.max_overhead_percent {self.config.max_overhead_percent:g}"
        remark = f"{bound} has left the solver {least:.2g} s"
        return replace(solution, remarks=[*solution.remarks, remark])

    def take_answer(self, state: TrainingState) -> None:
        """Use what another process has found, if it has: from this moment on."""
        waiting = self.waiting
        if waiting is None or not waiting.background.is_done:
            return
        self.waiting = None
        state.must_save = True
        try:
            solution = waiting.background.result()
            record = {**waiting.record, "used_at_step": state.step}
            self._use(state, waiting.question, waiting.background.problem, solution, record)
        except Exception as error:
            self._has_failed(state, error)

    def _use(
        self,
        state: TrainingState,
        question: AskedQuestion,
        problem: QuantumProblem,
        solution: Solution,
        record: Record,
    ) -> None:
        """Let the training do what was answered, and tell it; all of it, or nothing."""
        decisions = copy.copy(self.decisions)
        chosen = question.use(problem, solution.decision, decisions)
        began = record.pop("began")
        found = {
            **record,
            **chosen,
            **answer_facts(problem, solution, self.seed),
            "outcome": ANSWERED,
            "seconds": round(self.clock() - began, 3),
        }
        self.decisions = decisions
        if solution.failures:
            message = "; ".join(solution.failures)
            record_recovery(
                state,
                RecoveryKind.QUANTUM_STEP,
                f"took the answer of {solution.answered_by}",
                message,
            )
            state.must_save = True
        state.must_save |= bool(solution.info.get("bound_hit"))
        self._tell(found)

    def _record(self, state: TrainingState) -> Record:
        position = {"step": state.step, "epoch": state.position.epoch}
        return {**position, "problem": self.config.problem, "began": self._began}

    def note_answer(self, state: TrainingState, problem: str, solution: Solution) -> None:
        """Remember an answer that was asked for, and applied, in somebody's own loop."""
        self.num_asked += 1
        self.asked_step, self.asked_phase = state.step, state.position.phase
        told = solution.to_json()
        known = ("energy", "answered_by", "is_fallback", "num_variables", "seconds")
        more = ("solver_seconds", "alternatives", "failures", "remarks", "info")
        record = {name: told[name] for name in (*known, *more)}
        position = {"step": state.step, "epoch": state.position.epoch}
        what = {"problem": problem, "outcome": ANSWERED}
        self._tell({**position, **what, "chosen": f"{len(solution.decision)} chosen", **record})

    def skip(self, state: TrainingState, why: str) -> None:
        state.must_save = True  # a clock has decided
        self._tell({**self._record(state), "outcome": SKIPPED, "why": why})

    def _has_failed(self, state: TrainingState, error: Exception) -> None:
        why = clipped(f"{type(error).__name__}: {error}")
        record_recovery(state, RecoveryKind.QUANTUM_STEP, "the training goes on as it was", why)
        state.must_save = True
        self._tell({**self._record(state), "outcome": FAILED, "why": why})

    def _tell(self, record: Record) -> None:
        record.pop("began", None)
        kept = self.history.add(record)
        self.untold |= numbers_of(kept)
        self.say(in_words(kept))

    def tell_unused(self, state: TrainingState) -> None:
        """The training is over, and a question is not answered yet, or its answer not used."""
        if self.waiting is not None and state.error is None and not state.is_interrupted:
            why = "the training was over before the answer of the other process could be used"
            self._tell({**self.waiting.record, "outcome": UNUSED, "why": why})

    def stop_waiting(self) -> None:
        if self.waiting is not None:
            self.waiting.background.close()
            self.waiting = None
