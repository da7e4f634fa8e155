"""A note is short, without secrets, and the notes are not without end."""

import json
import logging
import time

import pytest
import torch

from infrastructure.core.errors import DataError
from infrastructure.training.core.state import RecoveryKind, TrainingState
from infrastructure.training.recovery.recovery_log import (
    MAX_CHARACTERS,
    MAX_RECORDS,
    MAX_ROWS,
    clipped,
    num_rollbacks,
    record_recovery,
    row_names,
    shortened,
)

SECRET = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz"


def state() -> TrainingState:
    return TrainingState(torch.nn.Linear(1, 1), step=7)


def test_a_note_hides_secrets_and_is_short(caplog: pytest.LogCaptureFixture) -> None:
    noted = state()
    message = f"https://me:{SECRET}@host refused {'x' * 5000}"
    record_recovery(noted, "save_refused", "continues", message, [f"{SECRET}.jsonl:3"] * 500)
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
    for step in (3, 0):
        record_recovery(noted, "save_refused", "continues", message, step=step)
        assert noted.recoveries[-1]["step"] == step


def test_a_note_is_what_happened_where_and_when(caplog: pytest.LogCaptureFixture) -> None:
    noted, before = state(), int(time.time())
    record_recovery(noted, RecoveryKind.LOSS_SPIKE, "noted", "9 after 1", ["a:3", "a:5"], step=4)
    record_recovery(noted, "save_refused", "continues", "full")
    spike, refused = noted.recoveries
    assert before <= time.mktime(time.strptime(spike.pop("time"), "%Y-%m-%dT%H:%M:%S%z"))
    rows = {"rows": ["a:3", "a:5"], "is_rollback": False}
    about = {"step": 4, "kind": "loss_spike", "action": "noted", "message": "9 after 1"}
    assert spike == {**about, **rows}
    assert (refused["rows"], "is_rollback" in refused) == ([], False)
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [
        (logging.WARNING, "loss spike at step 4 (9 after 1): noted; rows a:3, a:5"),
        (logging.WARNING, "save refused at step 7 (full): continues"),
    ]


def test_what_is_too_long_is_cut_at_its_limit() -> None:
    assert (MAX_CHARACTERS, MAX_ROWS, MAX_RECORDS) == (1000, 50, 200)
    assert clipped("x" * 1000) == "x" * 1000
    assert clipped("x" * 1001) == "x" * 999 + "…"
    rows = [str(number) for number in range(51)]
    assert shortened(rows[:50]) == rows[:50]
    assert shortened(rows) == [*rows[:50], "and 1 more"]
    assert shortened(rows, 2) == ["0", "1", "and 49 more"]


def test_of_many_notes_those_of_ways_back_stay() -> None:
    """They are counted: a run that went back too often stops."""
    noted = state()
    record_recovery(noted, RecoveryKind.NOT_FINITE, "went back to step 1", "nan", is_rollback=True)
    for number in range(2 * MAX_RECORDS):
        record_recovery(noted, "save_refused", "continues", str(number))
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


def test_rows_are_named_by_the_source_that_knows_them(caplog: pytest.LogCaptureFixture) -> None:
    class Knows:
        def places(self, epoch: int, example: int, count: int) -> list[str]:
            return [f"file:{epoch}:{n}" for n in range(example, example + count)]

    class Cannot:
        def __init__(self, error: Exception) -> None:
            self.error = error

        def places(self, epoch: int, example: int, count: int) -> list[str]:
            raise self.error

    assert row_names(Knows(), 2, 5, 2) == ["file:2:5", "file:2:6"]
    positions = [f"training.row_place(number={number}, epoch=2)" for number in (5, 6)]
    assert row_names(object(), 2, 5, 2) == positions
    assert caplog.text == ""
    for error in (DataError("it is gone"), OSError("it is away"), ValueError("no JSON")):
        assert row_names(Cannot(error), 2, 5, 2) == positions
        assert f"training.row_names_unavailable(error={error})" in caplog.text
    with pytest.raises(KeyError):
        row_names(Cannot(KeyError("a bug")), 2, 5, 2)
