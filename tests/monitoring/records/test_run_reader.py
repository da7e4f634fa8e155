import json
from pathlib import Path

import pytest

from infrastructure.monitoring.records.run_reader import (
    CHECKS_FILE,
    config_of,
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
    assert "monitoring.file_unreadable" in run.problems[0]
    assert "monitoring.file_content_unexpected" in run.problems[1]
    assert "monitoring.file_content_unexpected" in run.problems[2]


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
    assert titled(by_time, **settings).startswith("new small model on chats.jsonl, 2026-11-2")
    hub = {"model.name": "org/Llama-3", "data.path": "samples"}
    assert titled(by_time, "never", **hub) == "Llama-3 on sample tasks, never"
    preferences = titled(by_time, "today", **settings, **{"training.method": {"value": "dpo"}})
    assert preferences == "new small model, DPO on chats.jsonl, today"
    assert titled(by_time, **settings, run_name={"value": "first try"}) == "first try"
    for own in (
        "runs/20261123-182539-mine-38d5/final",
        "/r/20261123-182539-mine-38d5",
        "mine/final",
    ):
        assert titled(by_time, "now", **settings | {"model.name": own}).startswith("mine on chats")
    assert titled("outputs", **settings) == "outputs"  # a folder that somebody else has named
    assert titled(by_time) == by_time
