"""What a run leaves when it ends, whoever trained it."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from infrastructure.backup.repair.run_files_repair import read_seal
from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.stop_signals import StopSignal
from infrastructure.monitoring.records.live_run import LiveRun
from infrastructure.monitoring.records.status_text import state_words
from infrastructure.run import finalize
from infrastructure.run.directory import RunDirectory
from infrastructure.run.finalize import (
    complete_finished,
    has_sealed_report,
    read_summary,
    record_running,
    seal,
    summary_of,
    write_report_of,
    write_summary,
)
from infrastructure.run.record import record_brought_back


@dataclass
class Training:
    """How far a training has come; no torch."""

    step: int = 7
    total_steps: int = 9
    num_tokens: int = 70
    loss: float = float("nan")
    metrics: dict[str, float] = field(default_factory=lambda: {"memory_bytes": 5.0})
    recoveries: list[dict[str, Any]] = field(default_factory=list)
    stop_message: str | None = None
    stop_signal: str | None = None


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


TOKEN = "hf_" + "aB3" * 12


@pytest.mark.parametrize(
    ("is_finished", "error", "expected"),
    [
        (True, None, {"status": "finished", "reason": None, "error": None}),
        (False, None, {"status": "stopped", "reason": None, "error": None}),
        (False, KeyboardInterrupt(), {"status": "stopped", "reason": "interrupted", "error": None}),
        (False, KeyboardInterrupt("full"), {"reason": "full", "signal": None}),
        (False, StopSignal(15), {"status": "stopped", "signal": "SIGTERM", "error": None}),
        (True, RuntimeError("bad"), {"status": "failed", "error": "RuntimeError: bad"}),
        (False, RuntimeError("bad"), {"status": "failed", "error": "RuntimeError: bad"}),
    ],
)
def test_how_a_run_ended_is_reported_in_one_way(
    run: RunDirectory, is_finished: bool, error: BaseException | None, expected: dict[str, Any]
) -> None:
    summary = summary_of(run, Training(), 2.0, is_finished=is_finished, error=error)
    assert expected.items() <= summary.items()
    assert (summary["steps"], summary["total_steps"], summary["tokens"]) == (7, 9, 70)
    assert (summary["seconds"], summary["peak_memory_bytes"]) == (2.0, 5.0)
    assert summary["paths"] == {"run": str(run.path)}
    assert "history" not in summary


def test_what_happened_under_way_is_in_the_summary(run: RunDirectory) -> None:
    history = [{"step": 3, "changes": []}]
    write_record(run.run_file, {"history": history})
    training = Training(recoveries=[{"kind": "loss_spike", "step": 3}], stop_signal="SIGHUP")
    summary = summary_of(run, training, 2.0, is_finished=False)
    assert summary["history"] == history
    assert summary["recoveries"] == [{"kind": "loss_spike", "step": 3}]
    assert summary["signal"] == "SIGHUP"


def test_a_reason_that_was_given_counts_and_a_secret_does_not_get_in(run: RunDirectory) -> None:
    stopped = Training(stop_message="two steps are enough")
    for error in (None, KeyboardInterrupt("other"), StopSignal(15)):
        summary = summary_of(run, stopped, 1.0, is_finished=False, error=error)
        assert summary["reason"] == "two steps are enough"
    stopped.stop_signal = "SIGHUP"
    summary = summary_of(run, stopped, 1.0, is_finished=False, error=StopSignal(15))
    assert summary["signal"] == "SIGHUP"
    failed = summary_of(run, Training(), 1.0, is_finished=False, error=ValueError(TOKEN))
    assert TOKEN not in failed["error"]


def test_a_number_that_is_none_is_written_and_what_cannot_be_read_is_nothing(
    run: RunDirectory,
) -> None:
    assert read_summary(run) == {}
    write_summary(run, {"loss": float("nan")})
    assert read_record(run.summary_file)["loss"] == "NaN"
    run.summary_file.write_text('{"loss": 1')
    assert read_summary(run) == {}


def test_a_sealed_report_is_known_until_it_changes(run: RunDirectory) -> None:
    report = run.path / "report.html"
    assert not has_sealed_report(run)
    report.write_text("a page")
    seal(run, {"status": "finished"})
    assert has_sealed_report(run)
    assert read_summary(run)["paths"]["report"] == str(report)
    report.write_text("another")
    assert not has_sealed_report(run)


def test_a_disk_that_refuses_the_seal_costs_nothing(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    run.summary_file.mkdir()
    seal(run, {"status": "finished"})
    assert f"run.summary_not_updated(summary_file={run.summary_file}, error=" in caplog.text


def test_a_report_that_cannot_be_drawn_costs_nothing(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: Path) -> None:
        raise KeyError("a quantity")

    monkeypatch.setattr(finalize, "write_report", fail)
    write_report_of(run)
    failure = "run.report_not_written(file=report.html, error=KeyError('a quantity'))"
    assert failure in caplog.text


class Copies:
    """Of a run at a place; its files are looked at when the copy is confirmed."""

    def __init__(self, run: RunDirectory, has_place: bool) -> None:
        self.run, self.has_place, self.text = run, has_place, "on its way"
        self.calls: list[object] = []

    def facts(self) -> dict[str, Any]:
        return {"text": self.text}

    def complete(self, seconds: float, record: Callable[[], None]) -> None:
        record()
        self.calls += [seconds, read_summary(self.run)["backup"], has_sealed_report(self.run)]
        self.text = "confirmed"

    def close(self) -> None:
        self.calls.append("closed")


def test_a_finished_run_is_recorded_before_and_after_its_copy_is_confirmed(
    run: RunDirectory,
) -> None:
    write_summary(run, {"status": "finished", "paths": {"run": "/moved/away"}})
    copies: Any = Copies(run, has_place=True)
    summary = complete_finished(run, copies, 7.0)
    assert copies.calls == [7.0, {"text": "on its way"}, True, "closed"]
    assert summary["backup"] == read_summary(run)["backup"] == {"text": "confirmed"}
    assert read_summary(run)["paths"]["run"] == str(run.path)
    assert "report.html" in read_seal(run.path)
    assert has_sealed_report(run), "the report shows the copies as they stand now"


def test_without_a_place_what_was_known_of_the_copies_stays(run: RunDirectory) -> None:
    paths = {"run": "/moved/away"}
    published = {"published": "/disk/final"}
    write_summary(run, {"status": "finished", "backup": published, "paths": paths})
    before = run.summary_file.read_bytes()
    copies: Any = Copies(run, has_place=False)
    summary = complete_finished(run, copies, 7.0)
    assert summary["backup"] == {"published": "/disk/final", "text": "on its way"}
    assert summary["paths"]["run"] == str(run.path)
    assert (copies.calls, run.summary_file.read_bytes()) == ([], before)


def test_a_copier_is_released_if_its_wait_fails(run: RunDirectory) -> None:
    write_summary(run, {"status": "finished"})
    copies: Any = Copies(run, has_place=True)

    def fail(seconds: float, record: Callable[[], None]) -> None:
        raise OSError("the disk is full")

    copies.complete = fail
    with pytest.raises(OSError, match="full"):
        complete_finished(run, copies, 7.0)
    assert copies.calls == ["closed"]


def words_of(run: RunDirectory) -> str:
    with closing(LiveRun(run.path)) as shown:
        return state_words(shown)


def test_where_a_killed_run_went_on_stays_known_to_its_end(run: RunDirectory) -> None:
    record_running(run, 100)
    assert read_summary(run) == {"status": "running", "total_steps": 100}
    record_running(run, 100)
    often = "times=monitoring.once(), cause=monitoring.a_kill()"
    once = f"monitoring.resumed_times({often}, start=the first step, restored=)."
    assert words_of(run).endswith(once)
    record_running(run, 100, first_step=60)  # nobody had written an end
    cost: Any = {"price_per_hour": "2 EUR", "seconds": 1800.0, "amount": 1.0, "text": "1 EUR"}
    write_summary(run, {"status": "stopped", "steps": 80, "cost": cost})
    record_running(run, 100, first_step=80)
    assert read_summary(run)["cost"] == cost, "a kill does not make the sessions before it free"
    write_summary(run, {"status": "finished", "steps": 100, "seconds": 9.3})
    went_on = [{"step": step, "was_killed": step < 80} for step in (0, 60, 80)]
    assert read_summary(run)["went_on"] == went_on
    start = "start=monitoring.resumed_from_step(step=80), restored=)"
    often = "times=monitoring.times_last(times=3), cause=monitoring.a_stop()"
    resumed = f"monitoring.resumed_times({often}, {start}."
    last = f"Finished at step 100monitoring.after_last_resume(duration=9.3 s){resumed}"
    assert words_of(run) == last
    steps = [f'{{"step": {step}, "loss": 1.0, "seconds": 30}}\n' for step in (40, 100)]
    (run.path / "metrics.jsonl").write_text("".join(steps))
    assert words_of(run) == (
        f"Finished at step 100monitoring.total_step_time(duration=1 min 00 s){resumed}"
    )


def test_a_run_that_was_brought_back_knows_its_earlier_sessions(run: RunDirectory) -> None:
    """Its folder was lost, and with it summary.json; run.json has come with the checkpoint."""
    write_record(run.run_file, {"run_id": "a"})
    record_running(run, 100)
    record_running(run, 100, first_step=40)
    for step, place in ((60, "ftp://me:secret@host/temper"), (80, "/mnt/disk")):
        run.summary_file.unlink()
        record_brought_back(run, place, was_killed=True)
        with closing(LiveRun(run.path)) as shown:
            assert shown.state == "interrupted"
            assert "monitoring.restored_not_resumed" in state_words(shown)
        record_running(run, 100, first_step=step)
    assert "secret" not in run.run_file.read_text()
    assert "brought_back" not in read_record(run.run_file)
    assert read_summary(run)["went_on"] == read_record(run.run_file)["went_on"]
    write_summary(run, {"status": "finished", "steps": 100, "seconds": 9.3})
    assert words_of(run).endswith(
        "monitoring.resumed_times(times=monitoring.times_last(times=3), cause=monitoring.a_kill(),"
        " start=monitoring.resumed_from_step(step=80),"
        " restored=monitoring.restored_from(places=ftp://***@host/temper, /mnt/disk))."
    )
