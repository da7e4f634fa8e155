"""What changed under way is recorded once, without secrets and hashes, and told by stretches."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.config.field_help import plain
from infrastructure.core.checksums import read_record, write_record
from infrastructure.run.compatibility import Difference, Verdict
from infrastructure.run.directory import RunDirectory
from infrastructure.run.history import (
    HISTORY,
    brought_other_data,
    extend_history,
    history_lines,
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


def test_no_secret_and_no_hash_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["temper", "train", "a b", TOKEN])
    run = made(tmp_path)
    secrets = [
        Difference("settings.api_token", "first", "second", Verdict.CHANGES_THE_RESULT),
        Difference("model.name", TOKEN, {"key": [TOKEN]}, Verdict.CHANGES_THE_RESULT),
        Difference("rows", {"of": ["c" * 64]}, None, Verdict.CHANGES_THE_RESULT),
    ]
    history = extended(run, [], OTHER_ROWS, *secrets, step=4)
    assert history[0]["command"].startswith("temper train 'a b' ")
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


def entry(step: int, name: str = "learning_rate") -> dict[str, Any]:
    change = {"name": name, "was": 1, "is": 2, "effect": Verdict.CHANGES_THE_RESULT.value}
    return {"when": "", "step": step, "command": "", "changes": [change]}


def commit(run: RunDirectory, step: int, values: dict[str, Any]) -> Path:
    store = Store(run.checkpoints)
    tensors = {"model/w": TensorBytes("U8", (1,), bytes([step]))}
    return store.manifest_path(store.commit(tensors, values, step=step))


def steps(history: Sequence[Any]) -> list[int]:
    return [one["step"] for one in history]


def test_the_history_is_that_of_the_newest_version_or_of_the_one_of_a_step(tmp_path: Path) -> None:
    run = made(tmp_path)
    commit(run, 2, {HISTORY: []})
    commit(run, 4, {HISTORY: [entry(2)]})
    commit(run, 6, {HISTORY: [entry(2), entry(4), entry(6)]})
    assert steps(history_of(run)) == [2, 4, 6]
    assert steps(history_of(run, 6)) == [2, 4], "what changed after step 6 did not make it"
    assert steps(history_of(run, 4)) == [2]
    assert steps(history_of(run, 2)) == []
    write_record(run.run_file, {HISTORY: [entry(1), entry(3)]})
    assert steps(history_of(run, 5)) == [1, 3], "no version is of step 5"


def test_versions_without_a_history_or_damaged_are_skipped(tmp_path: Path) -> None:
    run = made(tmp_path)
    commit(run, 2, {HISTORY: [entry(1)]})
    commit(run, 3, {"step": 3})
    damaged = commit(run, 4, {HISTORY: [entry(1), entry(3)]})
    assert steps(history_of(run)) == [1, 3]
    damaged.write_bytes(b"{}")
    assert steps(history_of(run)) == [1]


@pytest.mark.parametrize(("step", "expected"), [(None, [1, 3]), (9, [1, 3]), (3, [1]), (1, [])])
def test_without_a_version_the_run_record_counts(
    tmp_path: Path, step: int | None, expected: list[int]
) -> None:
    run = RunDirectory(tmp_path)
    assert history_of(run, step) == [], "no record either"
    write_record(run.run_file, {HISTORY: [entry(1), entry(3), {"step": "x"}, 7]})
    assert steps(history_of(run, step)) == expected


def test_a_run_without_a_record_gets_none_by_its_history(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert steps(extended(run, [], RATE, step=4)) == [4]
    assert not run.run_file.exists()


def test_what_is_recorded_of_a_change_is_all_of_it_that_is_no_secret(tmp_path: Path) -> None:
    was = {"api_token": "first", "rate": [0.5, None, True, ("x", Path("a"))], "of": "c" * 32}
    change = Difference("part", was, "c" * 31, Verdict.CHANGES_THE_RESULT, text=f"part {TOKEN}")
    [entry] = extended(made(tmp_path), [], change, RATE, step=4)
    part, rate = entry["changes"]
    assert part["was"] == {
        "api_token": "***",
        "rate": [0.5, None, True, ["x", "a"]],
        "of": "c" * 12,
    }
    assert part["is"] == "c" * 31
    assert part["effect"] == Verdict.CHANGES_THE_RESULT.value
    assert part["text"].startswith("part ")
    assert TOKEN not in part["text"]
    assert "text" not in rate
    assert entry["command"]
    assert entry["when"][:2] == "20"


@pytest.mark.parametrize(
    ("was", "now", "is_shown"),
    [
        (1, 2, True),
        (None, "mean", True),
        ("a" * 12, "b" * 12, False),
        ("a" * 11, "b" * 11, True),
        ("mean", "b" * 12, False),
        ("b" * 12, "mean", False),
        ([1], [2], False),
        ([1], 2, False),
        (1, [2], False),
        ("a" * 12 + "-", "mean", True),
    ],
)
def test_only_values_that_mean_something_are_shown(was: Any, now: Any, is_shown: bool) -> None:
    change: Any = {"name": "reduction", "was": was, "is": now, "effect": "x"}
    history: Any = [{"step": 5, "changes": [change]}]
    [published], [line] = public_history(history), history_lines(history)
    assert ("was" in published, "is" in published) == (is_shown, is_shown)
    if is_shown:
        values = f"name=reduction, was={plain(was)}, step=5, now={plain(now)}"
        assert line == f"run.changed_at_step({values})"
    else:
        assert line == "run.changed_after_step(name=reduction, step=5)"
    change["text"] = "other code"
    assert history_lines(history) == ["run.change_after_step(change=other code, step=5)"]


@pytest.mark.parametrize(("was", "now"), [("/a/b", "b"), ("b", "/a/b"), ("~/b", "./b")])
def test_a_path_on_either_side_is_not_published(was: str, now: str) -> None:
    history: Any = [{"step": 5, "changes": [{"name": "x", "was": was, "is": now, "effect": "y"}]}]
    assert public_history(history) == [{"after_step": 5, "name": "x", "effect": "y"}]


def test_lines_mark_changes_that_only_round_otherwise(tmp_path: Path) -> None:
    lines = history_lines(extended(made(tmp_path), [], THREADS, RATE, step=4))
    assert [("run.rounds_sums" in line) for line in lines] == [True, False]
    assert stretches(extended(made(tmp_path), [], THREADS, step=4), "num_threads", 8) == []


@pytest.mark.parametrize(
    ("changed_after", "last_step", "expected"),
    [
        ([4], 4, [(1, 4)]),
        ([4], 5, [(1, 4), (5, 5)]),
        ([4, 4], 6, [(1, 4), (5, 6)]),
        ([1], 3, [(1, 1), (2, 3)]),
    ],
)
def test_stretches_meet_and_none_is_empty(
    changed_after: list[int], last_step: int, expected: list[tuple[int, int]]
) -> None:
    history: Any = [entry(step) for step in changed_after]
    parts = stretches(history, "learning_rate", last_step)
    assert [(first, last) for first, last, _ in parts] == expected
