import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.monitoring.records.run_reader import (
    CHECKS_FILE,
    RunFacts,
    config_of,
    data_words,
    numbers_of,
    read_rounds,
    read_small_files,
    title_of,
)


def test_an_empty_directory_is_a_run_without_facts(tmp_path: Path) -> None:
    run = read_small_files(tmp_path)
    assert (run.run_id, run.status, run.files, run.problems) == (tmp_path.name, "running", {}, [])


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"monitoring\.not_a_run_directory"):
        read_small_files(tmp_path / "nothing")


def test_damaged_files_are_reported_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"run_id": ')
    (tmp_path / "summary.json").write_text("[]")
    (tmp_path / CHECKS_FILE).write_text("{}")
    run = read_small_files(tmp_path)
    assert run.files == {}
    assert run.problems[0].startswith("monitoring.file_unreadable(name=run.json, error=")
    assert run.problems[1:] == [
        "monitoring.file_content_unexpected(name=summary.json)",
        "monitoring.file_content_unexpected(name=checks.json)",
    ]


@pytest.mark.parametrize(
    ("config", "known", "ended", "copies"),
    [
        ({}, {}, None, {"place": None}),
        ({"backup.place": "a"}, {}, None, {"place": "a"}),
        ({"backup.place": "a", "enable_backups": False}, {}, None, {"place": None}),
        ({"backup.place": "a"}, {"place": "b", "step": 1}, None, {"place": "b", "step": 1}),
        ({}, {"place": "b", "step": 1}, {"step": 2}, {"place": "b", "step": 2}),
    ],
)
def test_the_newest_record_of_the_copies_counts(
    config: dict[str, Any], known: dict[str, Any], ended: Any, copies: dict[str, Any]
) -> None:
    files: dict[str, Any] = {
        "run.json": {"config": config},
        "checkpoints/backup.json": known,
        "summary.json": {"backup": ended, "status": "odd"},
    }
    run = RunFacts(Path(), files)
    assert (run.copies, run.status) == (copies, "running")


def test_rounds_of_checks_are_the_objects_of_their_file(tmp_path: Path) -> None:
    assert read_rounds(tmp_path) == []
    (tmp_path / CHECKS_FILE).write_text('[{"step": 1}, 3]')
    assert read_rounds(tmp_path) == [{"step": 1}]


def test_config_values_come_with_their_source() -> None:
    run = {"config": {"seed": {"value": 1, "source": "--seed"}, "old": 3}}
    assert config_of(run) == {"seed": (1, "--seed"), "old": (3, "")}


def test_only_numbers_count_as_measurements(tmp_path: Path) -> None:
    after = {"eval_loss": "NaN", "exact_match": {"all": 0.5, "bad": "x"}, "text": "y"}
    (tmp_path / "summary.json").write_text(json.dumps({"after": after, "before": None}))
    summary = read_small_files(tmp_path).summary
    numbers = numbers_of(summary["after"])
    assert numbers["eval_loss"] != numbers["eval_loss"]
    assert numbers["exact_match"] == {"all": 0.5}
    assert "text" not in numbers
    assert numbers_of(summary["before"]) == {}


def titled(run_id: str, created: str = "2026-11-23T18:25:55+0000", **config: object) -> str:
    return title_of({"config": config, "created": created}, run_id)


def test_a_run_is_called_by_its_name_or_by_what_it_trains() -> None:
    by_time = "20261123-182539-embedded-38d5"
    settings = {"model.name": {"value": "embedded"}, "data.path": {"value": "/home/me/chats.jsonl"}}
    assert titled(by_time, **settings).startswith(
        "small model from scratch on chats.jsonl, 2026-11-2"
    )
    hub = {"model.name": "org/Llama-3", "data.path": "samples"}
    assert titled(by_time, "never", **hub) == "Llama-3 on sample tasks, never"
    preferences = titled(by_time, "today", **settings, **{"training.method": {"value": "dpo"}})
    assert preferences == "small model from scratch, DPO on chats.jsonl, today"
    assert titled(by_time, **settings, run_name={"value": "first try"}) == "first try"
    for own in (
        "runs/20261123-182539-mine-38d5/final",
        "/r/20261123-182539-mine-38d5",
        "mine/final",
    ):
        assert titled(by_time, "now", **settings | {"model.name": own}).startswith("mine on chats")
    for method, words in (("grpo", ", GRPO"), ("reward", ", reward"), ("sft", "")):
        of_method = settings | {"model.name": "m/", "training.method": {"value": method}}
        assert titled(by_time, "now", **of_method) == f"m{words} on chats.jsonl, now"
    lora = settings | {"model.name": r"d:\models\mine", "model.lora_config": {"value": {"r": 2}}}
    assert titled(by_time, "now", **lora) == "mine, LoRA on chats.jsonl, now"
    assert titled(by_time, "now", **{"model.name": "m"}) == "m, now"
    for name in ("run_name", "model.name"):
        long = titled(by_time, "now", **{name: "x" * 61})
        assert long.startswith(f"{'x' * 60} … (1 more")
    assert titled("outputs", **settings) == "outputs"  # a folder that somebody else has named
    assert titled(by_time) == by_time


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("sample", "sample tasks"),
        ("samples", "sample tasks"),
        ("/lib/infrastructure/training/data/samples/a.jsonl", "sample tasks"),
        ("samples.jsonl", "samples.jsonl"),
        ("org/rows/", "rows"),
        ("/", "/"),
    ],
)
def test_data_are_called_by_the_end_of_their_path(data: str, words: str) -> None:
    assert data_words(data) == words
