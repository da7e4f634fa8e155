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
from infrastructure.training.hf_bridge.finished_training import FinishedTraining, NothingToTrain


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


@pytest.mark.parametrize(("has_place", "is_whole"), [(False, False), (True, False), (True, True)])
def test_what_a_kill_has_prevented_is_made(tmp_path: Path, has_place: bool, is_whole: bool) -> None:
    run, freed = Run(tmp_path, has_place), []
    run.is_whole = is_whole
    write_record(run.files.summary_file, {"status": "running", "total_steps": 9})
    stack = ExitStack()
    stack.callback(lambda: freed.append([*run.calls]))
    training = finished(run, stack)
    nothing: Any = SimpleNamespace(state=SimpleNamespace(log_history=[{"eval_loss": 2.0}]))
    assert FinishedTraining(run, nothing, None, ExitStack()).metrics() == {}  # type: ignore[arg-type]
    assert training.metrics() == {"train_runtime": 4.0}
    training.end()
    reports = has_place and not is_whole
    expected = ["save the model", "compare anew", "complete", *["copies"] * reports, "close"]
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


class Trainer:
    """Stands for the parts of a Trainer that trains."""

    def __init__(self, global_step: int) -> None:
        self.state, self._total_loss_scalar = SimpleNamespace(global_step=global_step), 0.0
        self.calls: list[object] = []

    def _run_epoch(self, *given: object) -> None:
        self.calls.append(given)

    def _evaluate(self, *given: object) -> None:
        self.calls.append(given)

    def log(self, metrics: dict[str, float]) -> None:
        self.calls.append(metrics)


@pytest.mark.parametrize(("steps", "total"), [(4, 8.0), (0, 2.0)])
def test_a_call_that_trains_nothing_logs_what_the_run_came_to(steps: int, total: float) -> None:
    trainer = Trainer(steps)
    nothing = NothingToTrain(trainer, {"train_loss": 2.0, "train_runtime": 9.0})
    assert trainer._total_loss_scalar == total  # which the Trainer divides by its steps
    trainer._run_epoch(1)
    trainer._evaluate(2)
    logs = {"train_loss": 7.0, "epoch": 1.0}
    trainer.log(logs)
    assert (trainer.calls, logs) == ([], {"train_loss": 2.0, "train_runtime": 9.0})
    own = trainer.log = lambda metrics: None  # type: ignore[method-assign]
    nothing.end()
    assert trainer.log is own, "the user's own method stays"
    trainer._run_epoch(1)
    trainer._evaluate(2)
    assert trainer.calls == [(1,), (2,)]
    NothingToTrain(trainer, {})
    assert trainer._total_loss_scalar != trainer._total_loss_scalar  # unknown
    with pytest.raises(ValueError, match=r"trainer\.own_loop_not_skippable"):
        NothingToTrain(SimpleNamespace(state=trainer.state), {})
