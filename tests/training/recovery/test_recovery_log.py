"""A note is short, without secrets, and the notes are not without end."""

import json

import pytest
import torch

from infrastructure.core.errors import DataError
from infrastructure.training.core.state import RecoveryKind, TrainingState
from infrastructure.training.recovery.recovery_log import (
    MAX_CHARACTERS,
    MAX_RECORDS,
    MAX_ROWS,
    num_rollbacks,
    record_recovery,
    row_names,
)

SECRET = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz"


def state() -> TrainingState:
    return TrainingState(torch.nn.Linear(1, 1), step=7)


def test_a_note_hides_secrets_and_is_short(caplog: pytest.LogCaptureFixture) -> None:
    noted = state()
    message = f"https://me:{SECRET}@host refused {'x' * 5000}"
    record_recovery(noted, "save_refused", "goes on", message, [f"{SECRET}.jsonl:3"] * 500)
    text = json.dumps(noted.recoveries)
    assert SECRET not in text
    (entry,) = noted.recoveries
    assert len(entry["message"]) <= MAX_CHARACTERS
    assert len(entry["rows"]) == MAX_ROWS + 1
    assert entry["rows"][-1] == "and 450 more"
    assert entry["step"] == 7
    assert SECRET not in caplog.text
    assert "save refused at step 7" in caplog.text
    assert "and 495 more" in caplog.text  # a line names a few rows alone
    record_recovery(noted, "save_refused", "goes on", message, step=3)
    assert noted.recoveries[-1]["step"] == 3


def test_of_many_notes_those_of_ways_back_stay() -> None:
    """They are counted: a run that went back too often stops."""
    noted = state()
    record_recovery(noted, RecoveryKind.NOT_FINITE, "went back to step 1", "nan", is_rollback=True)
    for number in range(2 * MAX_RECORDS):
        record_recovery(noted, "save_refused", "goes on", str(number))
    assert len(noted.recoveries) == MAX_RECORDS
    assert num_rollbacks(noted) == 1
    assert noted.recoveries[-1]["message"] == str(2 * MAX_RECORDS - 1)


def test_where_all_notes_are_of_ways_back_the_oldest_goes() -> None:
    noted = state()
    for number in range(MAX_RECORDS + 1):
        record_recovery(noted, RecoveryKind.NOT_FINITE, "back", str(number), is_rollback=True)
    messages = [entry["message"] for entry in noted.recoveries]
    assert messages == [str(number) for number in range(1, MAX_RECORDS + 1)]


def test_a_rollback_that_does_not_count_is_not_counted() -> None:
    """Whatever its sentence begins with: see `rollback.skip_batch`."""
    noted = state()
    record_recovery(noted, RecoveryKind.LOSS_SPIKE, "went back to step 1", "a spike")
    record_recovery(noted, RecoveryKind.OUT_OF_MEMORY, "went back to step 1", "no memory")
    assert num_rollbacks(noted) == 0


def test_the_rollbacks_of_a_run_of_before_are_counted() -> None:
    """Its records do not say which they are; their sentences do."""
    noted = state()
    for kind, action in [
        ("not_finite", "went back to step 1, to look at each step up to 4"),
        ("not_finite", "found it and went back to step 1, to pass over the batch of step 4"),
        ("loss_spike", "went back to step 4, to pass over the batch of step 9"),
        ("out_of_memory", "went back to step 4, micro-batches of 2 from there"),
    ]:
        noted.recoveries.append({"kind": kind, "action": action, "step": 4})
    assert num_rollbacks(noted) == 2


def test_rows_are_named_by_the_source_that_knows_them() -> None:
    class Knows:
        def places(self, epoch: int, example: int, count: int) -> list[str]:
            return [f"file:{epoch}:{n}" for n in range(example, example + count)]

    class Cannot:
        def places(self, epoch: int, example: int, count: int) -> list[str]:
            raise DataError("the file is gone")

    assert row_names(Knows(), 2, 5, 2) == ["file:2:5", "file:2:6"]
    positions = [f"training.row_place(number={number}, epoch=2)" for number in (5, 6)]
    assert row_names(Cannot(), 2, 5, 2) == row_names(object(), 2, 5, 2) == positions
