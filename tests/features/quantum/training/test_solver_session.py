"""The session of a run's solver: seeds, time limits, records, and its state in a checkpoint."""

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.quantum.config import AT_ANY_COST, QuantumConfig
from infrastructure.features.quantum.problems.block_selection import BlockSelection
from infrastructure.features.quantum.solving.quantum_step import Solution
from infrastructure.features.quantum.training import solver_session
from infrastructure.features.quantum.training.decisions import Decisions
from infrastructure.features.quantum.training.solver_session import SolverSession
from infrastructure.training.core.state import Position, TrainingState


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def session_of(clock: Clock | None = None, seed: int = 0, **quantum: Any) -> SolverSession:
    parts: Any = SimpleNamespace(
        sections={"quantum": QuantumConfig(**quantum)},
        training_config=TrainingConfig(seed=seed),
        adapter=SimpleNamespace(device=torch.device("cpu")),
    )
    return SolverSession(parts, clock or Clock())


@pytest.fixture
def state() -> TrainingState:
    return TrainingState(torch.nn.Linear(1, 1), position=Position(epoch=2, phase=1), step=9)


def answer(**more: Any) -> Solution:
    given = {"decision": ["b"], "sample": {}, "energy": -1.5, "answered_by": "exact"}
    given |= {"is_fallback": False, "num_variables": 3, "seconds": 2.0, "solver_seconds": 0.5}
    return Solution(**{**given, **more})


HEAD = {"step": 9, "epoch": 2, "problem": "data_selection"}


def test_each_step_has_a_seed_of_its_own_that_never_changes() -> None:
    sessions = [session_of(seed=seed) for seed in (0, 1, 2**31 + 5)]
    found = []
    for session in sessions:
        session.num_steps = 3
        found.append(session.seed)
    assert found == [3, 1_000_006, (5 * 1_000_003 + 3 + 2**31 * 1_000_003) % 2**31]
    assert 0 <= found[2] < 2**31


def test_all_of_its_state_comes_back(state: TrainingState) -> None:
    first, again = session_of(), session_of()
    first.decisions.train_only(["b", "a"])
    first.decisions.select_examples([3, 1])
    first.run(state, lambda: first.record_own_answer(state, "block_selection", answer()))
    saved = json.loads(json.dumps(first.state_dict()))
    again.load_state_dict(saved)
    assert json.loads(json.dumps(again.state_dict())) == saved
    assert (again.num_steps, again.last_step, again.last_phase) == (2, 9, 1)
    assert again.decisions.blocks == {"a", "b"}
    assert again.history.records() == first.history.records()
    assert again.unlogged == first.unlogged
    assert (again.solver_seconds, session_of().solver_seconds) == (0.5, None)


def test_an_answer_of_a_custom_loop_is_recorded(state: TrainingState) -> None:
    session, lines = session_of(), list[str]()
    session.report = lines.append
    session.record_own_answer(state, "block_selection", answer(remarks=["cut"]))
    [record] = session.history.records()
    assert record == {
        **{**HEAD, "problem": "block_selection"},
        **{"outcome": "answered", "chosen": "1 chosen", "energy": -1.5, "answered_by": "exact"},
        **{"is_fallback": False, "num_variables": 3, "seconds": 2.0, "solver_seconds": 0.5},
        **{"alternatives": {}, "failures": [], "remarks": ["cut"], "info": {}},
    }
    assert (session.num_steps, session.last_step, session.last_phase) == (1, 9, 1)
    numbers = {"problem_size": 3.0, "energy": -1.5, "seconds": 2.0, "solver_seconds": 0.5}
    assert session.unlogged == {f"quantum_{name}": value for name, value in numbers.items()}
    words = "Quantum step (block selection): 1 chosen, chosen by exact in 2.0 s; cut"
    assert lines == [words]
    assert not state.must_save


@pytest.mark.parametrize(("note", "why"), [("", "dear"), ("by chance", "dear; by chance")])
def test_a_step_that_is_skipped_or_fails_is_recorded_and_saved(
    note: str, why: str, state: TrainingState
) -> None:
    session = session_of()
    session.without_answer = lambda: note
    session.skip(state, "dear")
    assert state.must_save
    state.must_save = False
    clock: Any = session.clock

    def fail() -> None:
        clock.now += 4.0
        raise LookupError("dear")

    session.run(state, fail)
    skipped, failed = session.history.records()
    assert skipped == {**HEAD, "outcome": "skipped", "why": why}
    assert failed["outcome"] == "failed"
    assert "dear" in failed["why"]
    assert failed["why"].endswith(f"; {note}" if note else failed["why"])
    assert state.must_save
    [noted] = state.recoveries
    assert noted["kind"] == "quantum_step"
    assert noted["action"] == "quantum.step_failed_training_continues()"
    assert (session.num_steps, session.cost.spent_seconds) == (1, 4.0)


def test_a_device_that_fails_ends_the_training(
    state: TrainingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solver_session, "is_device_fault", lambda _: True)
    session = session_of()

    def fail() -> None:
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        session.run(state, fail)
    assert session.history.records() == []


class Step:
    """A step that keeps what it applies."""

    def apply(self, problem: Any, decision: list[str], decisions: Decisions) -> dict[str, Any]:
        decisions.train_only(decision)
        return {"chosen": "b of 3"}


@pytest.mark.parametrize(
    ("percent", "allowed", "limit", "is_cut"),
    [
        (5.0, 14.0, 4.0, True),  # ten seconds are spent
        (5.0, 400.0, 60.0, False),  # the timeout is the limit
        (5.0, 3.0, 0.01, True),
        (AT_ANY_COST, math.inf, 60.0, False),
        ("auto", 14.0, 4.0, True),
    ],
)
def test_a_solver_has_the_time_that_is_left_and_its_answer_is_recorded(
    percent: Any,
    allowed: float,
    limit: float,
    is_cut: bool,
    state: TrainingState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, given = Clock(), list[Any]()
    session = session_of(clock, seed=2, max_overhead_percent=percent, timeout=60.0)
    numbers = np.zeros(3)
    problem = BlockSelection(list("abc"), numbers, np.eye(3), 1, gradient_norms=numbers)

    def solve(question: Any, config: QuantumConfig, **named: Any) -> Solution:
        given.append((question, config.timeout, named))
        clock.now += 1.0
        return answer(info={"bound_hit": True}, failures=["late", "lost"], remarks=["near"])

    monkeypatch.setattr(solver_session, "quantum_solve", solve)
    before = session.decisions

    def decide() -> None:
        clock.now += 10.0
        session.solve(state, Step(), problem, 12.5, allowed)  # type: ignore[arg-type]

    session.run(state, decide)
    assert given == [(problem, limit, {"seed": 2_000_007, "chain": session.chain})]
    [record] = session.history.records()
    shown = f"limit=quantum.max_overhead_percent={session.cost.percent:g}, seconds={limit}"
    remarks = ["near", *[f"quantum.solver_time_cut_by_budget({shown})"] * is_cut]
    assert record == {
        **HEAD,
        **{"foretold_seconds": 12.5, "allowed_seconds": None if math.isinf(allowed) else allowed},
        **{"outcome": "answered", "chosen": "b of 3", "energy": -1.5, "answered_by": "exact"},
        **{"is_fallback": False, "num_variables": 3, "seconds": 11.0, "solver_seconds": 0.5},
        **{"alternatives": {}, "failures": ["late", "lost"], "remarks": remarks},
        **{"info": {"bound_hit": True}, "facts": problem.facts()},
    }
    assert (session.decisions.blocks, before.blocks) == ({"b"}, None)
    assert state.must_save
    [noted] = state.recoveries
    assert noted["message"] == "late; lost"
    assert noted["action"] == "quantum.answer_of_other_solver_used(name=exact)"
    assert session.cost.spent_seconds == 11.0


@pytest.mark.parametrize(
    ("more", "must_save"),
    [({}, False), ({"info": {"bound_hit": True}}, True), ({"failures": ["late"]}, True)],
)
def test_an_answer_that_depended_on_a_clock_is_saved_at_once(
    more: dict[str, Any],
    must_save: bool,
    state: TrainingState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(solver_session, "quantum_solve", lambda *_, **__: answer(**more))
    session, numbers = session_of(), np.zeros(3)
    problem = BlockSelection(list("abc"), numbers, np.eye(3), 1, gradient_norms=numbers)
    session.solve(state, Step(), problem, 1.0, 500.0)  # type: ignore[arg-type]
    assert state.must_save is must_save


def test_steps_that_were_requested_have_no_limit_of_time(
    state: TrainingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solver_session, "quantum_solve", lambda *_, **__: answer())
    session, numbers = session_of(), np.zeros(3)
    session.cost.never_skips = True
    problem = BlockSelection(list("abc"), numbers, np.eye(3), 1, gradient_norms=numbers)
    session.solve(state, Step(), problem, 1.0, 0.001)  # type: ignore[arg-type]
    assert session.history.records()[0]["allowed_seconds"] is None
