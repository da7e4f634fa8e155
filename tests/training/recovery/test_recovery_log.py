"""A note is short, without secrets, and the notes are not without end."""

import json

import torch

from infrastructure.core.errors import DataError
from infrastructure.training.core.state import TrainingState
from infrastructure.training.recovery.recovery_log import (
    MAX_CHARACTERS,
    MAX_NOTES,
    MAX_ROWS,
    WENT_BACK,
    note,
    num_rollbacks,
    rows_of,
)

SECRET = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz"


def state() -> TrainingState:
    return TrainingState(torch.nn.Linear(1, 1), step=7)


def test_a_note_hides_secrets_and_is_short() -> None:
    noted = state()
    message = f"https://me:{SECRET}@host refused {'x' * 5000}"
    note(noted, "save_refused", "goes on", message, [f"{SECRET}.jsonl:3"] * 500)
    text = json.dumps(noted.recoveries)
    assert SECRET not in text
    (entry,) = noted.recoveries
    assert len(entry["message"]) <= MAX_CHARACTERS
    assert len(entry["rows"]) == MAX_ROWS + 1
    assert entry["rows"][-1] == "and 450 more"
    assert entry["step"] == 7


def test_of_many_notes_those_of_ways_back_stay() -> None:
    """They are counted: a run that went back too often stops."""
    noted = state()
    note(noted, "not_finite", f"{WENT_BACK} to step 1", "nan")
    for number in range(2 * MAX_NOTES):
        note(noted, "save_refused", "goes on", str(number))
    assert len(noted.recoveries) == MAX_NOTES
    assert num_rollbacks(noted) == 1
    assert noted.recoveries[-1]["message"] == str(2 * MAX_NOTES - 1)


def test_rows_are_named_by_the_source_that_knows_them() -> None:
    class Knows:
        def places(self, epoch: int, example: int, count: int) -> list[str]:
            return [f"file:{epoch}:{n}" for n in range(example, example + count)]

    class Cannot:
        def places(self, epoch: int, example: int, count: int) -> list[str]:
            raise DataError("the file is gone")

    assert rows_of(Knows(), 2, 5, 2) == ["file:2:5", "file:2:6"]
    positions = ["example 5 of epoch 2", "example 6 of epoch 2"]
    assert rows_of(Cannot(), 2, 5, 2) == rows_of(object(), 2, 5, 2) == positions
