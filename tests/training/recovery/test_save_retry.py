"""A store that refuses: the training goes on, tries again, and stops when it was enough."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.core.errors import StorageError
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.training.core.state import TrainingState
from infrastructure.training.recovery.save_retry import SaveRetryPolicy
from tests.training.toy_training import Training


def refusing(directory: Path, is_refused: Callable[[int], bool], **settings: Any) -> Training:
    """A training whose n-th save, from 0, is refused where `is_refused(n)`."""
    training = Training(directory, **{"checkpoint_frequency": 2, **settings})
    training.checkpointer.failures.retry_seconds = 1e9
    save, attempts = training.checkpointer.begin, []

    def refuse(state: TrainingState, kind: str) -> None:
        attempts.append(state.step)
        if is_refused(len(attempts) - 1):
            raise StorageError("planted") from OSError(errno.ENOSPC, "No space left on device")
        save(state, kind)

    training.checkpointer.begin = refuse
    training.attempts = attempts  # type: ignore[attr-defined]
    return training


def test_a_refused_save_does_not_stop_the_training(tmp_path: Path) -> None:
    whole = Training(tmp_path / "whole", checkpoint_frequency=2).run()
    training = refusing(tmp_path / "refused", lambda number: number in (1, 2, 4)).run()
    assert torch.equal(training.weights, whole.weights)
    assert [step_of(path) for path in training.checkpoints.checkpoints()] == [0, 6, 10, 12]
    kinds = [(entry["kind"], entry["step"]) for entry in training.state.recoveries]
    assert kinds == [("save_refused", 2), ("save_refused", 4), ("save_refused", 8)]
    assert "planted" in training.state.recoveries[0]["message"]


def test_too_many_in_a_row_stop_it_with_a_last_attempt(tmp_path: Path) -> None:
    training = refusing(tmp_path, lambda number: 1 <= number <= 3)
    with pytest.raises(
        StorageError, match=r"training\.too_many_failed_saves.*count=3.*limit=2.*error=planted"
    ):
        training.run()
    assert step_of(training.checkpoints.newest()) == 6  # the last attempt, by then granted
    assert training.attempts == [0, 2, 4, 6, 6]  # type: ignore[attr-defined]


def test_a_refused_save_is_tried_again_soon(tmp_path: Path) -> None:
    training = refusing(tmp_path, lambda number: number == 1, checkpoint_frequency=6)
    now = [0.0]
    training.checkpointer.failures = SaveRetryPolicy(2, retry_seconds=2.0, clock=lambda: now[0])
    end_step = training.recorder.step_end

    def step_end(state: TrainingState) -> None:
        now[0] += 1.0
        end_step(state)

    training.recorder.step_end = step_end  # type: ignore[method-assign]
    training.run()
    assert training.attempts == [0, 6, 9, 12]  # type: ignore[attr-defined]


def test_a_refused_last_save_is_tried_once_more(tmp_path: Path) -> None:
    training = refusing(tmp_path, lambda number: number == 1, checkpoint_frequency=99)
    training.run()
    assert step_of(training.checkpoints.newest()) == 12


def test_an_error_of_another_kind_is_not_borne() -> None:
    state = TrainingState(torch.nn.Linear(1, 1))
    with pytest.raises(KeyError), SaveRetryPolicy(9).tolerated(state):
        raise KeyError("a mistake in the code")
    assert state.recoveries == []


def test_after_each_refusal_it_waits_twice_as_long_and_after_a_save_no_more() -> None:
    now = [0.0]
    policy = SaveRetryPolicy(3, retry_seconds=10.0, clock=lambda: now[0])
    state = TrainingState(torch.nn.Linear(1, 1))
    assert not policy.is_retry_due
    for seconds in (10.0, 20.0, 40.0):
        with policy.tolerated(state):
            raise OSError(errno.ENOSPC, "No space left on device")
        now[0] += seconds - 1.0
        assert not policy.is_retry_due
        now[0] += 1.0
        assert policy.is_retry_due
    assert [entry["action"] for entry in state.recoveries] == [
        f"training.save_retried_later(wait_seconds={seconds})" for seconds in (10.0, 20.0, 40.0)
    ]
    assert {entry["kind"] for entry in state.recoveries} == {"save_refused"}
    assert "No space left" in state.recoveries[0]["message"]
    policy.reset()
    assert not policy.is_retry_due
    with policy.tolerated(state):  # the fourth, and the first since
        raise torch.OutOfMemoryError("while it is gathered")
    assert policy.count == 1
    assert len(state.recoveries) == 4


def test_two_refusals_are_borne_and_the_first_is_tried_again_after_ten_seconds() -> None:
    policy = SaveRetryPolicy()
    assert (policy.max_failed, policy.retry_seconds, policy.count) == (2, 10.0, 0)
    state, cause = TrainingState(torch.nn.Linear(1, 1)), OSError("full")
    for _ in range(2):
        with policy.tolerated(state):
            raise cause
    with pytest.raises(StorageError) as raised, policy.tolerated(state):
        raise cause
    assert raised.value.__cause__ is cause
    assert (policy.count, len(state.recoveries)) == (3, 2)
