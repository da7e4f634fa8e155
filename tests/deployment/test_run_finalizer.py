"""How a run ends: in which order, with which patience, and what of it summary.json keeps."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.backup.repair.run_files_repair import SEAL
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.errors import CheckpointError
from infrastructure.deployment import run_finalizer
from infrastructure.deployment.run_finalizer import RunFinalizer
from infrastructure.evaluation.held_out import HeldOut
from infrastructure.run.directory import RunDirectory
from infrastructure.run.finalize import read_summary
from infrastructure.run.timings import Stages
from infrastructure.training.core.state import StopReason

PATIENCE = BackupConfig(place="somewhere", finish_seconds=70.0, emergency_seconds=7.0)


def made_of(**values: Any) -> Any:
    return SimpleNamespace(**values)


class Ending:
    """A finalizer of a training that is none, and what it did, in order."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, place: bool = True) -> None:
        self.done: list[Any] = []
        self.lines: list[str] = []
        self.now = 0.0
        self.run = RunDirectory(folder)
        self.problem: str | None = None
        state = SimpleNamespace(
            step=12,
            stop_reason=StopReason.DEADLINE,
            position=SimpleNamespace(epoch=3),
            best_is_greater=True,
        )
        training = SimpleNamespace(
            ends_with_best=True, best_metric="f1", max_steps=12, deadline=90.0
        )
        self.trainer = made_of(
            state=state,
            training_config=training,
            model_config=SimpleNamespace(name="a-model", lora_config=None),
            adapter=SimpleNamespace(on_disk=False, save=self._save),
            device=torch.device("cpu"),
            strategy=SimpleNamespace(run_parts=self._run_parts),
            schedule=SimpleNamespace(seconds_to_copy=self._seconds_to_copy),
            initialize_model=lambda: "the model",
        )
        copies = made_of(
            has_place=place,
            complete=self._complete,
            wait=lambda seconds: self.did("wait", 5.0, seconds),
            problem=lambda: self.problem,
            line=lambda: "how the copies stand",
            facts=lambda: {"text": f"after {len(self.done)}"},
            close=lambda: self.did("close copies", 1.0),
        )
        forecast = made_of(compared=lambda seconds: [{"was": seconds}])
        self.finalizer = RunFinalizer(
            run=self.run,
            trainer=self.trainer,
            before=HeldOut({"eval_loss": 4.0}),
            copies=copies,
            forecast=forecast,
            stages=Stages(lambda: self.now),
            patience=PATIENCE,
            report=self._report(),
            price_per_hour="36",
            started=0.0,
        )
        patch.setattr(run_finalizer, "time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr(run_finalizer, "take_best", self._take_best)
        patch.setattr(run_finalizer, "trained_model", lambda _: None)
        patch.setattr(run_finalizer, "measure", self._measure)
        patch.setattr(run_finalizer, "summarise", self._summarise)
        patch.setattr(run_finalizer, "write_report_of", lambda run: self.did("report"))
        patch.setattr(run_finalizer, "closing_lines", lambda *_: ["the result"])
        patch.setattr(run_finalizer, "advice_at_end", self._advise)
        self.advised: tuple[Any, ...] = ()
        self.advised_as: dict[str, Any] = {}

    def did(self, what: str, seconds: float = 0.0, *more: Any) -> None:
        self.now += seconds
        self.done.append((what, *more) if more else what)

    def _take_best(self, *given: Any) -> int:
        self.did("best", 0.0, *given)
        return 9

    def _report(self) -> Any:
        waiting: Callable[..., Any] = Stages(lambda: 0.0).stage
        report: Any = lambda line: self.lines.append(line)  # noqa: E731
        report.waiting = lambda _: waiting("evaluate")
        return report

    def _run_parts(self, trainer: Any) -> Any:
        assert trainer is self.trainer
        return SimpleNamespace(save=lambda folder: [f"no part in {folder.name}"])

    def _save(self, folder: Path) -> None:
        folder.mkdir()
        self.did("save", 10.0)

    def _measure(self, trainer: Any, count: Any) -> HeldOut:
        self.did("measure", 20.0)
        return HeldOut({"eval_loss": 1.0})

    def _complete(self, seconds: float, record: Callable[[], object]) -> None:
        self.did("complete", 30.0, seconds)
        record()
        assert self.kept()["status"] == "finished", "also while it is confirmed"

    def _seconds_to_copy(self, reason: Any, patience: float) -> float:
        assert reason is StopReason.DEADLINE
        return patience + 1

    def _summarise(self, run: Any, trainer: Any, *more: Any) -> dict[str, Any]:
        seconds, before, after, error = more
        assert before is self.finalizer.before
        is_over = {"status": "finished"} if after else {"status": "failed" if error else "stopped"}
        numbers = {"seconds": seconds, "after": after and after.metrics, "signal": None}
        return {**is_over, **numbers, "steps": 12, "reason": "why", "paths": {}}

    def _advise(self, *given: Any, **named: Any) -> list[dict[str, str]]:
        self.advised, self.advised_as = given, named
        return [{"text": "train longer", "command": "temper"}]

    def kept(self) -> dict[str, Any]:
        kept: dict[str, Any] = json.loads(self.run.summary_file.read_text())
        return kept


@pytest.fixture
def ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ending:
    return Ending(tmp_path, monkeypatch)


def test_a_finished_run_is_saved_measured_and_confirmed(ending: Ending) -> None:
    ending.problem = "its copy is not safe"
    summary = ending.finalizer.finish()
    best = ("best", "the model", ending.run.checkpoints, 12)
    confirmed = ("complete", 70.0)
    steps = [best, "save", "measure", "report", confirmed, "report", "report"]
    assert ending.done == steps
    assert ending.kept()["final_step"] == summary["final_step"] == 9
    assert summary["after"] == {"eval_loss": 1.0}
    assert summary["seconds"] == 30.0, "what is asked first, without the wait for the copy"
    assert summary["forecast"] == [{"was": 30.0}]
    assert summary["cost"]["seconds"] == 60.0, "all of it costs"
    assert summary["cost"]["amount"] == 0.6
    assert summary["backup"] == {"text": "after 6"}, "as it stands when all is confirmed"
    assert summary["advice"] == [{"text": "train longer", "command": "temper"}]
    run, metric, step, epoch, before, after = ending.advised
    assert (run, metric, step, epoch) == (ending.run, "f1", 9, 3)
    assert (before["eval_loss"], after["eval_loss"]) == (4.0, 1.0)
    assert ending.advised_as == {
        **{"best_is_greater": True, "is_cut_short": True, "freezes_new_weights": False}
    }
    assert [(stage["name"], stage["seconds"]) for stage in summary["stages"]] == [
        *[("save", 10.0), ("evaluate", 20.0), ("back up", 30.0)]
    ]
    ending.finalizer.show_end()
    assert ending.lines[-2:] == ["the result", "its copy is not safe"]
    assert f"note: no part in {ending.run.path.name}" in ending.lines


def test_without_a_place_nothing_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = Ending(tmp_path, monkeypatch, place=False)
    ending.trainer.training_config.ends_with_best = False
    summary = ending.finalizer.finish()
    assert ending.done == ["save", "measure", "report"]
    assert "final_step" not in summary


def test_a_best_model_that_is_the_last_one_is_not_named(
    ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_finalizer, "take_best", lambda *_: 12)
    assert "final_step" not in ending.finalizer.finish()


def test_a_saved_model_that_answers_otherwise_does_not_stay(
    ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differs(folder: Path, trained: object) -> list[str]:
        raise CheckpointError("it answers otherwise")

    monkeypatch.setattr(run_finalizer, "trained_model", lambda _: "trained")
    monkeypatch.setattr(run_finalizer, "check_saved", differs)
    with pytest.raises(CheckpointError):
        ending.finalizer.finish()
    assert not ending.run.final.exists()
    monkeypatch.setattr(run_finalizer, "check_saved", lambda folder, trained: [f"{trained}, read"])
    ending.finalizer.finish()
    assert ending.run.final.is_dir()
    assert "trained, read" in ending.lines


def test_a_stopped_run_waits_as_long_as_an_emergency_allows(ending: Ending) -> None:
    summary = ending.finalizer.stopped()
    assert ending.done == ["report", ("wait", 8.0), "report"]
    assert (summary["status"], summary["forecast"], "advice" in summary) == ("stopped", [], False)
    assert summary["cost"]["seconds"] == 5.0
    assert ending.kept()["backup"] == {"text": "after 2"}
    ending.finalizer.show_end()
    assert ending.lines[0].startswith("deployment.stopped_at_step(step=12, reason=why, ")
    assert ending.lines[0].endswith("backup=how the copies stand)")
    assert [line.partition("(")[0] for line in ending.lines[2:]] == ["run.total_cost"]
    assert "1 min 30 s" in ending.lines[1], "the next session has the deadline, too"


def test_a_failed_run_keeps_its_error_and_its_helpers_are_ended(ending: Ending) -> None:
    ending.finalizer.failed(OSError("full"))
    assert ending.kept()["status"] == "failed"
    assert SEAL not in ending.kept()
    ending.finalizer.clean_up()
    assert SEAL in ending.kept()
    assert ending.done == ["report", "close copies"]
    [stage] = ending.kept()["stages"]
    assert (stage["name"], stage["seconds"]) == ("clean up", 1.0)


def test_a_run_that_came_to_nothing_is_cleaned_up_and_leaves_no_summary(ending: Ending) -> None:
    ending.finalizer.clean_up()
    assert ending.done == ["close copies"]
    assert not ending.run.summary_file.exists()
    ending.finalizer.show_end()
    assert ending.lines == []


@pytest.mark.parametrize("price", ["2 EUR", None])
def test_the_cost_is_of_all_sessions_and_grows_while_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, price: str | None
) -> None:
    """Each session writes its summary more than once, the time that it takes to end included."""
    monkeypatch.setattr(run_finalizer, "summarise", lambda *_: {"seconds": 1.0})
    monkeypatch.setattr(run_finalizer, "write_report_of", lambda run: None)
    run = RunDirectory(tmp_path)
    found = []
    for times in ((100.0, 160.0), (1000.0, 1030.0), (7.0, 11.0)):
        passed = SimpleNamespace(seconds=0.0)
        others: Any = {
            "trainer": SimpleNamespace(state=None),
            "before": None,
            "copies": SimpleNamespace(facts=dict),
            "forecast": None,
            "stages": SimpleNamespace(total_seconds=lambda of=passed: of.seconds, records=list),
            "patience": None,
            "report": None,
        }
        finalizer = RunFinalizer(run, **others, price_per_hour=price)
        for passed.seconds in times:
            finalizer.failed(RuntimeError("planted"))
            found.append(read_summary(run).get("cost", {}))
    seconds = [100.0, 160.0, 1160.0, 1190.0, 1197.0, 1201.0]
    if price is None:
        assert found == [{}] * len(seconds)
    else:
        assert [cost["seconds"] for cost in found] == seconds
        assert [cost["amount"] for cost in found] == pytest.approx([2 * s / 3600 for s in seconds])
