"""The list of runs is read from the ends of their files, and again only where something changed."""

import json
from pathlib import Path

import pytest

from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.monitoring.records import run_rows
from infrastructure.monitoring.records.run_owner import leave_trainer
from infrastructure.monitoring.records.run_rows import RunRow, RunRows
from tests.monitoring.written_run import add, evaluation, falling, step_record, write_run


def test_each_run_is_a_row_and_the_newest_is_first(tmp_path: Path) -> None:
    done = write_run(tmp_path, "2025-a", status="finished", after={"eval_loss": 0.25})
    add(done, step_record(40, 0.5))
    add(write_run(tmp_path, "2026-b"), evaluation(10, 1.5), step_record(12, 0.75))
    left = write_run(tmp_path, "2026-c")
    (left / "trained_by").write_text(
        (left / "trained_by").read_text().replace("process ", "process 99999")
    )
    assert RunRows(tmp_path).read() == [
        RunRow("2026-c", "2026-c", "interrupted", None, None, None, "my-llama"),
        RunRow("2026-b", "2026-b", "running", 12, 0.75, 1.5, "my-llama"),
        RunRow("2025-a", "2025-a", "finished", 40, 0.5, 0.25, "my-llama"),
    ]


def test_a_run_too_short_to_log_a_step_has_the_steps_of_its_summary(tmp_path: Path) -> None:
    write_run(tmp_path, "a", status="finished", steps=4)
    assert [row.step for row in RunRows(tmp_path).read()] == [4]


def test_a_run_that_saved_later_than_it_logged_has_the_step_that_it_goes_on_from(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path, "a")
    add(run, step_record(250))
    versions = run / "checkpoints/versions"
    versions.mkdir(parents=True)
    rows = RunRows(tmp_path)
    for number, step in enumerate((240, 280)):
        (versions / f"{number:012}-x.json").write_text(json.dumps({"step": step}))
        assert [row.step for row in rows.read()] == [max(250, step)]
    (versions / "000000000009-x.json").write_text("{ damaged")
    assert [row.step for row in RunRows(tmp_path).read()] == [250]


def test_of_somebodys_own_trainer_the_model_is_known(tmp_path: Path) -> None:
    run = tmp_path / "own"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"config": {}, "model": {"name": "given/tiny-llama"}}))
    assert [row.training for row in RunRows(tmp_path).read()] == ["tiny-llama"]


def test_a_run_that_did_not_change_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet, busy = write_run(tmp_path, "a"), write_run(tmp_path, "b")
    rows = RunRows(tmp_path)
    rows.read()
    read: list[Path] = []

    def count(path: Path, last_bytes: int) -> list[dict[str, object]]:
        read.append(path.parent)
        return read_metrics(path, last_bytes)

    monkeypatch.setattr(run_rows, "read_metrics", count)
    add(busy, step_record(3))
    assert [row.step for row in rows.read()] == [3, None]
    assert read == [busy]
    (busy / "summary.json").unlink()
    leave_trainer(quiet)
    assert [row.state for row in rows.read()] == ["starting", "interrupted"]
    assert read == [busy, busy, quiet]


def test_the_result_counts_and_the_steps_of_changes_are_listed(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", after={"eval_loss": 0.25})
    add(run, evaluation(10, 1.5))
    history = [{"step": 4}, {"step": "x"}, 3, {"step": 9}]
    (run / "run.json").write_text(json.dumps({"history": history}))
    assert RunRows(tmp_path).read() == [
        RunRow("a", "a", "running", 10, None, 0.25, changed_after=(4, 9))
    ]


def test_only_whole_lines_of_the_end_are_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = "".join(json.dumps({"step": step}) + "\n" for step in range(1000))
    path.write_text(lines + "???\n" + '{"step": 1000}\n{"ste')
    records = read_metrics(path, last_bytes=60)
    assert [record["step"] for record in records] == [998, 999, 1000]


def test_a_loss_that_is_not_finite_is_shown_as_such(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    add(run, *falling(1, 3), step_record(4, float("nan")))
    (row,) = RunRows(tmp_path).read()
    assert row.loss != row.loss
