import json
from pathlib import Path

import pytest

from infrastructure.monitoring.records.run_reader import read_run_facts, title_of


def test_an_empty_directory_is_a_run_without_facts(tmp_path: Path) -> None:
    run = read_run_facts(tmp_path)
    assert (run.run_id, run.status, run.last_step, run.problems) == (
        tmp_path.name,
        "running",
        None,
        [],
    )


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no run directory"):
        read_run_facts(tmp_path / "nothing")


def test_damaged_files_are_reported_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"run_id": ')
    (tmp_path / "summary.json").write_text("[]")
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\nbroken\n{"step": 2}\n{"ste')
    run = read_run_facts(tmp_path)
    assert [record["step"] for record in run.records] == [1, 2]
    assert len(run.problems) == 3
    assert "run.json could not be read" in run.problems[0]
    assert "summary.json is no JSON object" in run.problems[1]
    assert "1 lines of metrics.jsonl are damaged" in run.problems[2]
    assert run.last_record_at is not None


def test_config_values_come_with_their_source(tmp_path: Path) -> None:
    config = {"seed": {"value": 1, "source": "--seed"}, "old": 3}
    (tmp_path / "run.json").write_text(json.dumps({"config": config}))
    run = read_run_facts(tmp_path)
    assert run.config == {"seed": (1, "--seed"), "old": (3, "")}
    assert run.config_value("seed") == 1
    assert run.config_value("nothing") is None


def test_only_numbers_count_as_measurements(tmp_path: Path) -> None:
    after = {"eval_loss": "NaN", "exact_match": {"all": 0.5, "bad": "x"}, "text": "y"}
    (tmp_path / "summary.json").write_text(json.dumps({"after": after, "before": None}))
    run = read_run_facts(tmp_path)
    assert run.after["eval_loss"] != run.after["eval_loss"]
    assert run.after["exact_match"] == {"all": 0.5}
    assert "text" not in run.after
    assert run.before == {}


def test_the_speed_is_that_of_all_steps_together(tmp_path: Path) -> None:
    lines = [
        {"step": 1, "seconds": 1.0, "tokens_per_second": 100.0},
        {"step": 2, "seconds": 3.0, "tokens_per_second": 300.0},
        {"step": 3, "seconds": 2.0, "tokens_per_second": "NaN"},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_run_facts(tmp_path).tokens_per_second == 250.0


def titled(run_id: str, created: str = "2026-11-23T18:25:55+0000", **config: object) -> str:
    return title_of({"config": config, "created": created}, run_id)


def test_a_run_is_called_by_its_name_or_by_what_it_trains() -> None:
    by_time = "20261123-182539-embedded-38d5"
    settings = {"model.name": {"value": "embedded"}, "data.path": {"value": "/home/me/chats.jsonl"}}
    assert titled(by_time, **settings) == "new small model on chats.jsonl, 23 Nov 2026, 18:25"
    hub = {"model.name": "org/Llama-3", "data.path": "samples"}
    assert titled(by_time, "never", **hub) == "Llama-3 on sample tasks, never"
    assert titled(by_time, **settings, run_name={"value": "first try"}) == "first try"
    assert titled("outputs", **settings) == "outputs"  # a folder that somebody else has named
    assert titled(by_time) == by_time
