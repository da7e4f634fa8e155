"""What is told of a backup, and that nothing in its file can break who reads it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infrastructure.backup.replication.status import (
    LOCK_SUFFIX,
    STATES,
    BackupStatus,
    age_words,
    live_status,
    read_status,
    short_words,
    state_words,
    write_status,
)
from infrastructure.core.lock import Lock
from infrastructure.core.messages import phrase

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
        "backup.status(confirmed=backup.step_confirmed(step=120, age=45 s),"
        " place=drive:MyDrive/temper,"
        " in_flight=backup.step_in_flight(step=140, percent=63), problem=)"
    )


def test_a_version_that_took_long_to_arrive_is_reported_with_its_age() -> None:
    late = replace(CONFIRMED, confirmed_at=2800.0, in_flight_step=None)
    assert late.possible_loss(2845.0).text == (
        "backup.status("
        "confirmed=backup.step_confirmed_late(step=120, age=45 s, saved_age=30 min 45 s),"
        " place=drive:MyDrive/temper, in_flight=backup.step_waiting(step=140), problem=)"
    )


@pytest.mark.parametrize(
    ("facts", "in_flight"),
    [
        ({}, "backup.step_in_flight(step=140, percent=63)"),
        ({"done_bytes": 100}, "backup.step_in_flight(step=140, percent=99)"),
        ({"total_bytes": 0}, "backup.step_in_flight(step=140, percent=0)"),
        ({"total_bytes": 1000}, "backup.step_in_flight(step=140, percent=6)"),
        (
            {"in_flight_step": None, "in_flight_folder": "final"},
            "backup.folder_in_flight(folder=final, percent=63)",
        ),
        (
            {"in_flight_step": None, "in_flight_folder": "final", "done_bytes": 100},
            "backup.folder_in_flight(folder=final, percent=99)",
        ),
        (
            {"in_flight_step": None, "in_flight_folder": "final", "total_bytes": 0},
            "backup.folder_in_flight(folder=final, percent=0)",
        ),
        ({"in_flight_step": None}, "backup.step_waiting(step=140)"),
        ({"in_flight_step": None, "confirmed_name": "b"}, ""),
        ({"in_flight_step": None, "newest_step": None}, ""),
    ],
)
def test_what_is_on_its_way_is_named(facts: dict[str, Any], in_flight: str) -> None:
    text = replace(CONFIRMED, **facts).possible_loss(1055.0).text
    assert f", in_flight={in_flight}, problem=)" in text


@pytest.mark.parametrize(("seconds", "is_late"), [(60.0, False), (60.1, True)])
def test_a_version_is_late_after_a_minute(seconds: float, is_late: bool) -> None:
    status = replace(CONFIRMED, confirmed_at=1000.0 + seconds)
    assert ("step_confirmed_late(" in status.possible_loss(2000.0).text) is is_late


@pytest.mark.parametrize("state", STATES)
def test_each_state_has_its_own_words(state: str) -> None:
    assert state_words(state) == f"backup.state_{state}()"


@pytest.mark.parametrize(("count", "shown"), [(1, ""), (2, "backup.failed_times(count=2)")])
def test_a_failure_is_counted_from_the_second_one_on(count: int, shown: str) -> None:
    status = replace(CONFIRMED, state="retrying", error="no answer", num_failures=count)
    assert status.possible_loss(0.0).text.endswith(f", problem=; no answer{shown})")


def test_an_error_is_reported_with_what_can_be_done() -> None:
    failing = replace(
        BackupStatus(place="p", state="retrying"), error="no answer", num_failures=3, advice="mount"
    )
    text = failing.possible_loss(0.0).text
    known = (
        "backup.status(confirmed=backup.nothing_confirmed_yet(), place=p, in_flight=,"
        " problem=; no answerbackup.failed_times(count=3)"
    )
    continues = "(mountbackup.copying_then_continues())"
    assert text == f"{known} {continues})"
    assert failing.problem == f"no answer {continues}"
    assert (
        replace(CONFIRMED, state="left").possible_loss(1055.0).seconds
        == CONFIRMED.possible_loss(1055.0).seconds
        != 0
    )
    left = replace(failing, state="left")
    assert left.possible_loss(0.0).text == f"{known} (mount))", "nobody copies any more"


def test_without_a_place_the_sentence_names_that() -> None:
    loss = BackupStatus(state="off").possible_loss(5.0)
    assert loss == (None, "backup.status_without_destination(state=backup.state_off())")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((-3, "0 s"), (59.9, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min")),
        *((3599, "59 min 59 s"), (3600, "1 h"), (3659, "1 h"), (86399, "23 h 59 min")),
        *((86400, "1 d"), (90000, "1 d 1 h"), (1e6, "11 d 13 h")),
    ],
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


def test_what_is_safe_and_what_is_waited_for() -> None:
    assert not CONFIRMED.is_safe
    assert replace(CONFIRMED, newest_name="a").is_safe
    assert not BackupStatus(state="idle").is_safe  # there is nothing yet
    refused = replace(CONFIRMED, refused_name="r")
    settled = {name: refused.is_settled(name) for name in ("a", "b", "r")}
    assert settled == {"a": True, "b": False, "r": True}
    looked = replace(CONFIRMED, last_look="mine")
    assert [looked.has_looked(token) for token in ("", "mine", "other")] == [True, True, False]
    for state in STATES:
        ends = state in ("off", "fenced", "down")  # nobody will do it
        assert replace(looked, state=state).has_looked("other") is ends


@pytest.mark.parametrize("state", STATES)
def test_of_a_killed_copier_nothing_is_on_its_way(tmp_path: Path, state: str) -> None:
    path = tmp_path / "backup.json"
    status = replace(CONFIRMED, state=state, in_flight_folder="final")
    write_status(path, status)
    has_ended = state in ("unknown", "off", "finished", "left", "down")
    lock = Lock(path.with_suffix(LOCK_SUFFIX))
    lock.take()
    try:
        assert live_status(path) == status
    finally:
        lock.release()
    gone = replace(status, state="gone", in_flight_step=None, in_flight_folder=None)
    assert live_status(path) == (status if has_ended else gone)


def test_a_short_line_names_the_step_and_the_age_of_what_is_safe() -> None:
    assert short_words(CONFIRMED, 1055.0) == ("backup.short_status(step=120, age=55 s, failing=)")
    assert short_words(replace(CONFIRMED, state="retrying"), 1055.0) == (
        "backup.short_status(step=120, age=55 s, failing=backup.copying_fails())"
    )
    fenced = replace(CONFIRMED, state="fenced")
    assert short_words(fenced, 0.0) == phrase("backup.short_status_fenced")
    assert "backup.short_status_not_copying" in short_words(replace(CONFIRMED, state="down"), 0.0)
    assert "120" not in short_words(replace(CONFIRMED, saved_at=None), 0.0)


def test_what_was_seen_has_both_times_and_how() -> None:
    seen = replace(CONFIRMED, present_at=1050.0, compared_at=935.0, compared_by="checksum")
    text = seen.seen(1055.0)
    assert text is not None
    assert text == ("backup.seen_at_destination(seen_age=5 s, compared_age=2 min, method=checksum)")
    for missing in ("present_at", "compared_at", "compared_by"):
        assert replace(seen, **{missing: None}).seen(1055.0) is None


def test_what_would_be_lost_is_the_age_of_what_was_saved() -> None:
    assert CONFIRMED.possible_loss(900.0).seconds == 0.0  # of clocks that differ
    assert replace(CONFIRMED, saved_at=None).possible_loss(1055.0).seconds is None
    for state in ("doubtful", "fenced", "left", "gone", "down"):
        assert (
            f"backup.state_{state}()" in replace(CONFIRMED, state=state).possible_loss(1055.0).text
        )
    for state in ("doubtful", "fenced"):
        assert BackupStatus(state=state).problem == f"backup.state_{state}()"
    for state in ("idle", "gone", "left"):
        assert BackupStatus(state=state).problem is None
