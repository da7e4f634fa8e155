"""Training from notebooks, in real kernels: in the cell, in a process that outlives the kernel."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from colab import training
from colab.training import attach, stop, train
from infrastructure.core.errors import RunFailedError
from infrastructure.core.messages import WORDS
from infrastructure.monitoring.records.run_owner import read_trainer
from tests.colab.kernels import Cell, Kernel, start_kernel
from tests.deployment.runs import losses, runs_of, small_config, small_settings
from tests.monitoring.written_run import write_run
from tests.slow import slow, slow_but

ROOT = Path(__file__).parents[2]
LONG = 2000  # epochs; nobody waits for their end
SHORT = {"num_epochs": 8, "checkpoint_frequency": 20}


@pytest.fixture
def kernel(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """A fork; a Python of its own, where that is asked for."""
    is_fork = getattr(request, "param", "a fork") == "a fork"
    with start_kernel(tmp_path, is_fork=is_fork) as started:
        yield started
    for run in runs_of(tmp_path):
        stop(run)  # what outlived it


def cell(folder: Path, line: str, **settings: object) -> str:
    return f"""
import colab
from infrastructure.config.deployment_config import DeploymentConfig
config = DeploymentConfig(**{small_settings(folder, **settings)!r})
{line}
"""


# It never comes to its first step.
IN_PREPARATION = """
import time
from unittest import mock
from infrastructure.training.enhanced_trainer import EnhancedTrainer
with mock.patch.object(EnhancedTrainer, "initialize_model", lambda *_: time.sleep(600)):
    summary = colab.train(config)
"""


def has_a_panel(shown: Cell) -> bool:
    return re.search(r"<span>step [\d,]+ of", panel_of(shown)) is not None


def panel_of(shown: Cell) -> str:
    panels = [one["text/html"] for one in shown.shown.values() if "temper-panel" in str(one)]
    return panels[-1] if panels else ""


KERNELS = ["a fork", "that imports PyTorch"]


@pytest.mark.parametrize("kernel", slow_but(KERNELS[:1], KERNELS), indirect=True)
def test_a_training_in_the_cell_is_one_output_drawn_again_and_ends_with_its_result(
    kernel: Kernel, tmp_path: Path
) -> None:
    done = kernel.run(cell(tmp_path, "summary = colab.train(config)", **SHORT))
    assert done.error == ""
    assert len([one for one in done.shown.values() if "temper-panel" in str(one)]) == 1
    assert done.num_updates >= 2
    (run,) = runs_of(tmp_path)
    summary = json.loads((run / "summary.json").read_text())
    panel = panel_of(done)
    for text in (run.name, "finished", f"of {summary['total_steps']}", "Loss", "Learning rate"):
        assert text in panel, text
    assert "Before → after" in panel
    assert "run.files_head(" in done.text
    assert "held-out loss" not in done.text  # the panel has it
    assert "INFO" not in done.text
    assert "Failed to load" not in done.text  # what libraries have to say of themselves
    again = kernel.run(cell(tmp_path, "print(colab.train(config)['status'])", **SHORT))
    assert again.text.endswith("finished\n")
    assert "deployment.run_finished_before(" in again.text


def test_interrupting_the_cell_saves_and_shows_where_and_the_cell_goes_on(
    kernel: Kernel, tmp_path: Path
) -> None:
    code = cell(tmp_path, "summary = colab.train(config)", num_epochs=LONG)
    kernel.run_until(code, has_a_panel)
    shown = kernel.interrupt()
    assert shown.error == ""
    (run,) = runs_of(tmp_path)
    steps = json.loads((run / "summary.json").read_text())["steps"]
    assert f"stopped_at_step(step={steps}" in shown.text
    assert str(run) in shown.text
    assert "notebook.run_cell_to_resume" in shown.text
    looked_up = kernel.run('summary["paths"]["model"]')
    assert f"no_model_until_finished(run={run.name})" in looked_up.error
    assert "stopped" in panel_of(shown)
    preparing = cell(tmp_path, IN_PREPARATION, num_epochs=LONG)
    kernel.run_until(preparing, lambda cell: "deployment.loading_model()" in cell.text)
    shown = kernel.interrupt()
    # an error: the cells after it are not run
    assert shown.traceback == ["notebook.interrupted_before_training()"]
    kernel.run_until(code, lambda cell: "deployment.training_starts" in cell.text)
    shown = kernel.interrupt()
    assert shown.error == ""
    assert f"deployment.resuming_from_step(run_id={run.name}, step={steps}" in shown.text


@slow
def test_a_detached_training_outlives_its_kernel_and_the_next_kernel_looks_on(
    kernel: Kernel, tmp_path: Path
) -> None:
    code = cell(tmp_path, "summary = colab.train(config, detached=True)", num_epochs=LONG)
    kernel.run_until(code, has_a_panel)
    (run,) = runs_of(tmp_path)
    trainer = read_trainer(run)
    assert trainer is not None
    kernel.kill()
    with start_kernel(tmp_path) as second:
        again = second.run_until(code, has_a_panel)  # run all again: no second training begins
        about = f"run={run.name}, trainer={trainer}"
        assert f"notebook.watching_other_process({about})" in again.text
        assert runs_of(tmp_path) == [run]
        left = second.interrupt()
        assert left.error == ""
        assert "notebook.training_continues_detached(" in left.text
        assert read_trainer(run) == trainer
        before = len(losses(run))
        attached = second.run_until(cell(tmp_path, "colab.attach()"), has_a_panel)
        assert "Training (process" in panel_of(attached)
        second.interrupt()
        stopped = second.run(cell(tmp_path, "print(colab.stop())"))
        assert "deployment.stopped_" in stopped.text
        assert len(losses(run)) > before
    ended = read_trainer(run)
    assert ended is not None
    assert ended.is_alive is False


def test_without_a_notebook_lines_show_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = train(small_config(tmp_path, num_epochs=1))
    assert summary["status"] == "finished"
    captured = capsys.readouterr()
    assert f"[100%] step {summary['steps']}/" in captured.err
    assert "run.files_head(" in captured.out
    again = attach(summary["paths"]["run"])
    assert (again["status"], again["steps"]) == ("finished", summary["steps"])
    shown = capsys.readouterr().out
    assert shown.startswith("finished · step")
    assert "deployment.run_finished_before(" in shown
    ended, aside = Path(summary["paths"]["run"], "summary.json"), tmp_path / "aside"
    ended.rename(aside)
    monkeypatch.setattr(training, "_show_until_end", lambda _: aside.rename(ended))
    attach(summary["paths"]["run"])  # it ends while somebody looks on
    shown = capsys.readouterr().out
    assert f"deployment.run_finished(run_id={ended.parent.name}" in shown
    assert "run_finished_before" not in shown


def test_the_closing_lines_of_a_finished_run_come_once_from_its_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, process = write_run(tmp_path / "runs", status="finished"), tmp_path / "process"
    process.mkdir()
    closing = f"Files\nRun {run.name} was finished before; new_run trains again\n"
    for name, text in (("output.txt", closing), ("finished_before", ""), ("run", str(run))):
        (process / name).write_text(text)
    detached = training.DetachedTraining(process)
    monkeypatch.setattr(training.detached_trainings, "start", lambda *_: detached)
    summary = train(small_config(tmp_path), detached=True)
    assert summary["status"] == "finished"
    assert capsys.readouterr().out == closing


def test_a_training_ends_before_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPER_SESSION_HOURS", "1000")
    summary = train(small_config(tmp_path, max_steps=1))
    record = json.loads(Path(summary["paths"]["run"], "run.json").read_text())
    deadline = record["config"]["training.deadline"]
    assert 900 * 3600 < deadline["value"] < 1000 * 3600
    assert deadline["source"] == "the end of this session"


@slow
def test_a_detached_training_comes_to_the_same_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = train(small_config(tmp_path / "a", num_epochs=3))
    capsys.readouterr()
    other = train(small_config(tmp_path / "b", num_epochs=3), detached=True)
    assert other["status"] == "finished"
    assert losses(Path(one["paths"]["run"])) == losses(Path(other["paths"]["run"]))
    shown = capsys.readouterr().out
    assert "run.files_head(" in shown
    assert f"deployment.run_finished(run_id={Path(other['paths']['run']).name}" in shown
    assert "run_finished_before" not in shown


@slow
def test_a_detached_training_spells_settings_as_the_cell_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WORDS)
    train(small_config(tmp_path, max_steps=1))
    capsys.readouterr()
    train(small_config(tmp_path, max_steps=1), detached=True)
    shown = capsys.readouterr().out
    assert "new_run trains again" in shown
    assert "--new-run" not in shown


def test_a_run_that_failed_elsewhere_fails_the_cell_too(tmp_path: Path) -> None:
    run = write_run(tmp_path, status="failed", error="ValueError: x")
    (run / "logs").mkdir()
    (run / "logs/output.txt").touch()
    with pytest.raises(
        RunFailedError,
        match=r"notebook\.run_failed\(.*error=ValueError: x.*full_output_file\(.*output\.txt",
    ):
        attach(run)
    gone = write_run(tmp_path, "b")
    (gone / "trained_by").write_text(f"process 1 on {os.uname().nodename} ended\n")
    with pytest.raises(RunFailedError, match=r"notebook\.run_interrupted\("):
        attach(gone)


@slow
def test_what_is_prepared_already_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may die before its detached training has a run directory."""
    config = small_config(tmp_path, num_epochs=LONG)
    started = training.detached_trainings.start(config)
    monkeypatch.setattr(training.detached_trainings, "start", lambda *_: pytest.fail("started"))
    person = threading.Thread(target=interrupt_when_trained, args=(tmp_path,))
    person.start()
    summary = train(config, detached=True)
    person.join()
    (run,) = runs_of(tmp_path)
    trainer = read_trainer(run)
    assert trainer is not None
    assert summary["status"] == "running"
    assert trainer.pid == started.trainer.pid  # type: ignore[union-attr]
    assert stop(run)


def interrupt_when_trained(folder: Path) -> None:
    """As somebody does who has seen enough."""
    deadline = time.monotonic() + 120
    while not list(folder.glob("runs/*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_what_cannot_be_carried_out_is_refused_before_pytorch_is_loaded(tmp_path: Path) -> None:
    lines = f"""
import sys
sys.modules["torch"] = None  # importing it fails
import colab
from infrastructure.config.deployment_config import DeploymentConfig
among_runs = {{"backup.place": {str(tmp_path)!r}}}
colab.train(DeploymentConfig(output_dir={str(tmp_path)!r}, **among_runs))
"""
    done = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, capture_output=True, text=True)
    assert "check_supported" in done.stderr
    assert "ConfigurationError: config.destination_inside_output_dir(" in done.stderr
