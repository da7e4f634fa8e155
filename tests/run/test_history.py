"""What changed under way is recorded once, without secrets and hashes, and told by stretches."""

import json
from pathlib import Path
from typing import Any

from infrastructure.core.checksums import read_record, write_record
from infrastructure.run.compatibility import Difference, Verdict
from infrastructure.run.directory import RunDirectory
from infrastructure.run.history import (
    HISTORY,
    brought_other_data,
    extend_history,
    history_of,
    not_accepted,
    public_history,
    stretch_words,
    stretches,
)

TOKEN = "hf_" + "aB3" * 12
RATE = Difference("learning_rate", 0.1, 0.2, Verdict.CHANGES_THE_RESULT)
OTHER_ROWS = Difference("data", "a" * 64, "b" * 64, Verdict.CHANGES_THE_RESULT)
THREADS = Difference("num_threads", 2, 4, Verdict.ROUNDS_OTHERWISE)
PATCH = Difference("numpy", "1.0", "1.1", Verdict.HARMLESS)


def extended(run: RunDirectory, known: list[Any], *agreed: Difference, step: int) -> list[Any]:
    return extend_history(run, {HISTORY: known}, agreed, step, lambda: {"num_rows": 7})


def made(folder: Path) -> RunDirectory:
    run = RunDirectory(folder)
    write_record(run.run_file, {"data": {"fingerprint": "a"}})
    return run


def test_changes_are_added_to_those_of_the_version_and_lie_in_run_json(tmp_path: Path) -> None:
    run = made(tmp_path)
    first = extended(run, [], RATE, PATCH, step=4)
    both = extended(run, first, OTHER_ROWS, step=6)
    assert extended(run, both, PATCH, step=7) == both
    record = read_record(run.run_file)
    assert record["data"] == {"fingerprint": "a"}, "what it began with"
    assert record[HISTORY] == both == history_of(run)
    assert [(entry["step"], [c["name"] for c in entry["changes"]]) for entry in both] == [
        (4, ["learning_rate"]),
        (6, ["data"]),
    ]
    assert (brought_other_data(both[:1]), brought_other_data(both)) == (False, True)
    assert both[1]["data"] == {"num_rows": 7}
    assert "data" not in both[0]


def test_who_goes_back_behind_a_change_has_not_made_it(tmp_path: Path) -> None:
    run = made(tmp_path)
    extended(run, [], RATE, step=4)
    assert extended(run, [], step=2) == []
    assert history_of(run) == []
    assert len(extended(run, [], RATE, step=4)) == 1, "a second try is no second change"


def test_no_secret_and_no_hash_is_written(tmp_path: Path) -> None:
    run = made(tmp_path)
    secrets = [
        Difference("settings.api_token", "first", "second", Verdict.CHANGES_THE_RESULT),
        Difference("model.name", TOKEN, {"key": [TOKEN]}, Verdict.CHANGES_THE_RESULT),
        Difference("rows", {"of": ["c" * 64]}, None, Verdict.CHANGES_THE_RESULT),
    ]
    history = extended(run, [], OTHER_ROWS, *secrets, step=4)
    text = run.run_file.read_text() + json.dumps(public_history(history))
    for hidden in (TOKEN, "first", "second", "a" * 13, "c" * 13):
        assert hidden not in text
    assert not any({"was", "is", "command"} & one.keys() for one in public_history(history)[:1])


def test_what_rounds_otherwise_is_shown_and_is_the_same_training(tmp_path: Path) -> None:
    history = extended(made(tmp_path), [], THREADS, RATE, step=4)
    assert [change["name"] for _, change in not_accepted(history, [])] == ["learning_rate"]
    assert not_accepted(history, ["learning_rate"]) == []
    assert [one["name"] for one in public_history(history)] == ["num_threads", "learning_rate"]


def test_a_setting_is_shown_by_stretches(tmp_path: Path) -> None:
    run = made(tmp_path)
    back = Difference("learning_rate", 0.2, 0.1, Verdict.CHANGES_THE_RESULT)
    history = extended(run, extended(run, [], RATE, step=3), back, step=4)
    parts = stretches(history, "learning_rate", 8)
    assert parts == [(1, 3, 0.1), (4, 4, 0.2), (5, 8, 0.1)]
    assert stretch_words(parts) == "0.1 (steps 1 to 3), 0.2 (step 4), 0.1 (steps 5 to 8)"
    assert stretches(history, "seed", 8) == []
    assert stretches(extended(run, [], RATE, step=0), "learning_rate", 8) == [(1, 8, 0.2)]


def test_no_place_of_the_machine_is_published(tmp_path: Path) -> None:
    paths = ["/data/a.jsonl", "~/a.jsonl", "./a.jsonl", "../a.jsonl"]
    moved = [Difference("data.path", path, "a.jsonl", Verdict.CHANGES_THE_RESULT) for path in paths]
    published = public_history(extended(made(tmp_path), [], *moved, step=4))
    assert [{"was", "is"} & line.keys() for line in published] == [set()] * len(paths)
