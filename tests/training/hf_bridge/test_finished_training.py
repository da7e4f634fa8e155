"""A training that came to its end before: what lacks is made, and nothing is trained."""

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.core.checksums import write_record
from infrastructure.core.errors import CopyNotConfirmedError
from infrastructure.run.directory import RunDirectory
from infrastructure.run.finalize import has_sealed_report, read_summary, seal
from infrastructure.training.hf_bridge.finished_training import FinishedTraining


class Run:
    """Notes in which order it is completed."""

    is_whole = False

    def __init__(self, folder: Path, has_place: bool) -> None:
        self.files, self.calls = RunDirectory(folder), []
        self.is_confirmed = True
        self.copies = SimpleNamespace(
            has_place=has_place,
            compare_anew=lambda: self.calls.append("compare anew"),
            close=lambda: self.calls.append("close"),
        )
        self.calls: list[str]

    def is_recorded_finished(self) -> bool:
        return read_summary(self.files).get("status") == "finished"

    def save_model(self, model: object) -> None:
        self.calls.append(f"save {model}")

    def complete(self) -> None:
        self.calls.append("complete")
        assert has_sealed_report(self.files)
        if not self.is_confirmed:
            raise CopyNotConfirmedError("it is away")

    def copies_line(self) -> str:
        return "copies"

    def report(self, line: str) -> None:
        self.calls.append(line)


STATE = SimpleNamespace(
    global_step=7,
    max_steps=9,
    log_history=[{"train_runtime": 1.0}, {"train_runtime": 4.0, "step": 7}, {"eval_loss": 2.0}],
)


def finished(run: Any, stack: ExitStack | None = None) -> FinishedTraining:
    parts: Any = SimpleNamespace(model="the model", state=STATE)
    return FinishedTraining(run, parts, None, stack or ExitStack())


@pytest.mark.parametrize("has_place", [False, True])
def test_what_a_kill_has_prevented_is_made(tmp_path: Path, has_place: bool) -> None:
    run, freed = Run(tmp_path, has_place), []
    write_record(run.files.summary_file, {"status": "running", "total_steps": 9})
    stack = ExitStack()
    stack.callback(lambda: freed.append([*run.calls]))
    training = finished(run, stack)
    assert training.metrics() == {"train_runtime": 4.0}
    training.end()
    expected = ["save the model", "compare anew", "complete", *["copies"] * has_place, "close"]
    assert run.calls == expected
    assert freed == [expected]
    summary = read_summary(run.files)
    assert (summary["status"], summary["steps"], summary["total_steps"]) == ("finished", 7, 9)


def test_a_summary_and_a_report_that_are_whole_stay(tmp_path: Path) -> None:
    run = Run(tmp_path, has_place=True)
    (tmp_path / "report.html").write_text("a page")
    seal(run.files, {"status": "finished", "steps": 8})
    before = run.files.summary_file.read_bytes()
    finished(run).end()
    assert (tmp_path / "report.html").read_text() == "a page"
    assert run.files.summary_file.read_bytes() == before


def test_a_copy_that_is_not_confirmed_leaves_the_run_free(tmp_path: Path) -> None:
    run, freed = Run(tmp_path, has_place=True), []
    run.is_confirmed = False
    stack = ExitStack()
    stack.callback(lambda: freed.append("free"))
    with pytest.raises(CopyNotConfirmedError):
        finished(run, stack).end()
    assert (run.calls[-2:], freed) == (["complete", "close"], ["free"])


def test_an_error_in_its_call_changes_nothing_and_leaves_the_run_free(tmp_path: Path) -> None:
    run, freed = Run(tmp_path, has_place=True), []
    stack = ExitStack()
    stack.callback(lambda: freed.append("free"))
    finished(run, stack).break_off(RuntimeError("broken"))
    assert (run.calls, freed) == (["close"], ["free"])
    assert not run.files.summary_file.exists()
