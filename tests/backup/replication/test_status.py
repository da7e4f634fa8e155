"""What is told of a backup, and that nothing in its file can break who reads it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from infrastructure.backup.replication.status import (
    BackupStatus,
    age_words,
    read_status,
    write_status,
)

CONFIRMED = BackupStatus(
    place="drive:MyDrive/temper",
    state="copying",
    confirmed_name="a",
    confirmed_step=120,
    saved_at=1000.0,
    confirmed_at=1010.0,
    in_flight_step=140,
    done_bytes=63,
    total_bytes=100,
    newest_name="b",
    newest_step=140,
)


def test_one_sentence_states_what_is_safe_and_what_is_on_its_way() -> None:
    loss = CONFIRMED.possible_loss(1055.0)
    assert loss.seconds == 55.0
    assert loss.text == (
        "backup: step 120 confirmed 45 s ago at drive:MyDrive/temper (step 140 on its way, 63 %)"
    )


def test_a_version_that_took_long_to_arrive_is_reported_with_its_age() -> None:
    late = replace(CONFIRMED, confirmed_at=2800.0, in_flight_step=None)
    assert late.possible_loss(2845.0).text == (
        "backup: step 120 confirmed 45 s ago (saved 30 min 45 s ago) at drive:MyDrive/temper"
        " (step 140 waits)"
    )


def test_an_error_is_reported_with_what_can_be_done() -> None:
    failing = replace(
        BackupStatus(place="p", state="retrying"), error="no answer", num_failures=3, advice="mount"
    )
    text = failing.possible_loss(0.0).text
    known = "backup: nothing is confirmed yet at p; no answer, 3 times"
    assert text == f"{known} (mount; copying then goes on by itself)"
    assert failing.problem == "no answer (mount; copying then goes on by itself)"
    left = replace(failing, state="left")
    assert left.possible_loss(0.0).text == f"{known} (mount)", "nobody copies any more"


def test_without_a_place_the_sentence_names_that() -> None:
    loss = BackupStatus(state="off").possible_loss(5.0)
    assert loss == (None, "backup: there is no place: versions lie on this machine only")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-3, "0 s"), (59.9, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_an_age_is_reported_in_its_two_largest_units(seconds: float, words: str) -> None:
    assert age_words(seconds) == words


def test_a_status_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_status(tmp_path / "backup.json", CONFIRMED)
    assert read_status(tmp_path / "backup.json") == CONFIRMED


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"state": "dancing"}',
        b'{"state": "idle", "saved_at": "yesterday"}',
        b'{"state": "idle", "saved_at": NaN}',
        b'{"state": "idle", "done_bytes": true}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_status_is_one_of_which_nothing_is_known(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "backup.json"
    path.write_bytes(damage)
    assert read_status(path) == BackupStatus()


def test_a_missing_status_is_unknown_and_a_newer_one_is_read_as_far_as_it_is_known(
    tmp_path: Path,
) -> None:
    assert read_status(tmp_path / "none.json").state == "unknown"
    path = tmp_path / "backup.json"
    path.write_text(json.dumps({"state": "idle", "place": "p", "of_tomorrow": 1}))
    assert read_status(path) == BackupStatus(state="idle", place="p")


def test_when_the_training_has_ended_nothing_can_be_lost() -> None:
    ended = replace(CONFIRMED, state="finished")
    assert ended.possible_loss(9e9).seconds == 0.0
    assert "confirmed" in ended.possible_loss(9e9).text
