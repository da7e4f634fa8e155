"""Functions for a notebook that train, show and stop a run, in the cell or in another process.

All functions show the same panel, which reads the run's directory. Outside a notebook, they print
lines or a progress bar.
"""

import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colab.live_panel import LOOK_SECONDS, LivePanel
from colab.session_clock import clock_of_session
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.spelling import as_keyword, speaking
from infrastructure.core.console_log import start_console_log
from infrastructure.core.errors import RunFailedError
from infrastructure.core.importing import importing, searching_rarely
from infrastructure.core.messages import INTERRUPT, phrase
from infrastructure.core.notebook import in_notebook_kernel
from infrastructure.core.stop_signals import interrupt_on_signals
from infrastructure.data.defaults import make_ready
from infrastructure.data.samples import use_sample_data
from infrastructure.deployment import detached as detached_trainings
from infrastructure.deployment.detached import DetachedTraining
from infrastructure.monitoring.logging_config import OUTPUT_FILE
from infrastructure.monitoring.records.live_run import LiveRun
from infrastructure.monitoring.records.run_owner import read_trainer
from infrastructure.monitoring.watch import watch
from infrastructure.run.configuration_judge import canonical_name
from infrastructure.run.directory import RunDirectory
from infrastructure.run.finalize import read_summary
from infrastructure.run.find import newest_of_this_purpose
from infrastructure.run.record_types import Summary
from infrastructure.run.summary_text import RESULT, closing_lines, paths_of
from infrastructure.training.metrics.progress import Note, ProgressDisplay, make_progress

if TYPE_CHECKING:
    from infrastructure.deployment.deploy_training import TrainingDeployment

IN_THE_CELL = "notebook.interrupt_stops_training"
LOOKING_ON = "notebook.interrupt_stops_watching"


def as_cell(key: str, value: str = "") -> str:
    """Spell a setting as a Python keyword, and "Ctrl-C" as interrupting the cell."""
    if key == INTERRUPT and in_notebook_kernel():
        return phrase("notebook.interrupting_cell")
    return as_keyword(key, value)


@speaking(as_cell)
def train(
    config: DeploymentConfig, detached: bool = False, accept: Collection[str] = ()
) -> Summary:
    """Train a run with `config`, and show it below the cell until it ends.

    If the newest run with these settings is unfinished, it is resumed. If another process is
    training it, this call only shows it. If it is known when the session ends, the run is saved
    before that.

    Args:
        detached: train in a separate process, which outlives this kernel.
        accept: settings that may differ when a run resumes, such as `["learning_rate"]`.

    Returns:
        The content of summary.json. `status` is "finished" or "stopped". If the cell was
        interrupted while another process trains, it is "running".

    Raises:
        ValueError, TemperError: if the run cannot start with this configuration; nothing was
            trained.
        RunFailedError: if the run failed in a separate process.
        Exception: if the run failed in this process; the finished steps are in a checkpoint.
        KeyboardInterrupt: if the run was interrupted before its first step.
    """
    start_console_log(config.log_level)
    if not config.new_run:
        other = _trained_elsewhere(config, accept)
        if other is not None:
            return _look_on(other)
    config = clock_of_session().within_session(config)
    if detached:
        return _look_on(detached_trainings.start(config, accept))
    return _train_here(config, accept)


@speaking(as_cell)
def attach(run: str | Path | None = None, output_dir: str | Path = "runs") -> Summary:
    """Show a run that another process trains, until the run ends.

    Args:
        run: the name or path of the run; by default, the run being prepared, else the newest.
        output_dir: the directory of the runs.

    Return values and errors are those of `train`.
    """
    return _look_on(_named(run, output_dir))


@speaking(as_cell)
def stop(run: str | Path | None = None, output_dir: str | Path = "runs") -> bool:
    """Make the process that trains a run save a checkpoint and stop, and wait until it has ended.

    Args:
        run, output_dir: as for `attach`.

    Returns:
        True if the run has stopped training.

    Raises:
        ValueError: if there is no such run, or this process cannot stop it.
    """
    return detached_trainings.stop(_named(run, output_dir))


def _named(run: str | Path | None, output_dir: str | Path) -> Path | DetachedTraining:
    return detached_trainings.named(None if run is None else str(run), Path(output_dir))


def _trained_elsewhere(
    config: DeploymentConfig, accept: Collection[str]
) -> Path | DetachedTraining | None:
    """Return the run that another process trains or prepares with these settings, or None."""
    use_sample_data(config)
    if waiting := detached_trainings.preparing_the_same(config):
        return waiting
    run = newest_of_this_purpose(config, frozenset(map(canonical_name, accept)))
    if run is None or run.is_finished():
        return None
    trainer = read_trainer(run.path)
    is_other = trainer is not None and trainer.is_alive and trainer.pid != os.getpid()
    return run.path if is_other else None


class Interrupted(KeyboardInterrupt):
    """An error for a cell that was interrupted before the first step, shown without traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class _Cell:
    """The output of a cell that trains: lines of text, then the panel once the run has begun."""

    def __init__(self) -> None:
        self.panel: LivePanel | None = None

    def report(self, line: str) -> None:
        print(
            line if self.panel is None else line.removesuffix(phrase("run.ctrl_c_saves_and_stops"))
        )
        if self.panel is not None:
            self.panel.look()

    def begun(self, run_path: Path) -> None:
        if in_notebook_kernel():
            self.panel = LivePanel(run_path, phrase(IN_THE_CELL))
            self.panel.look()

    def make_progress(self, total_steps: int, step: int, note: Note) -> ProgressDisplay:
        return self.panel or make_progress(total_steps, step, note)

    def finish(self) -> None:
        if self.panel is not None:
            self.panel.finish()


def _train_here(config: DeploymentConfig, accept: Collection[str]) -> Summary:
    """Train in this process. The settings are checked before PyTorch is loaded."""
    make_ready(config)
    cell = _Cell()
    shown_elsewhere = ("console", RESULT) if in_notebook_kernel() else ()
    try:
        with interrupt_on_signals(), searching_rarely():
            summary = _deployment(
                config, cell.report, accept, cell.begun, cell.make_progress, shown_elsewhere
            ).run()
    except KeyboardInterrupt:
        raise Interrupted(phrase("notebook.interrupted_before_training")) from None
    finally:
        cell.finish()
    if summary["status"] == "stopped":
        print(phrase("notebook.run_cell_to_resume"))
        summary["paths"] = paths_of(Path(summary["paths"]["run"]))  # with words for a missing model
    return summary


def _deployment(config: DeploymentConfig, *shown: Any) -> "TrainingDeployment":
    """Load PyTorch, and return a deployment."""
    with importing():
        from infrastructure.deployment.deploy_training import TrainingDeployment
    return TrainingDeployment(config, *shown)


def _look_on(what: Path | DetachedTraining) -> Summary:
    """Show a run that another process trains, until it ends or the cell is interrupted."""
    run_path = None if isinstance(what, DetachedTraining) else what
    was_finished = run_path is not None and RunDirectory(run_path).is_finished()
    try:
        if isinstance(what, DetachedTraining):
            run_path = detached_trainings.follow(what, print)
            if what.was_finished_before:  # its process has printed everything, and is gone
                return _summary_of(run_path)
        assert run_path is not None
        if _is_trained(run_path):
            print(
                phrase(
                    "notebook.watching_other_process",
                    run=run_path.name,
                    trainer=read_trainer(run_path),
                )
            )
        _show_until_end(run_path)
    except KeyboardInterrupt:
        _print_next_steps(run_path)
        return _summary_of(run_path)
    return _ended(run_path, was_finished)


def _is_trained(run_path: Path) -> bool:
    trainer = read_trainer(run_path)
    return trainer is not None and trainer.is_alive is True


def _show_until_end(run_path: Path) -> None:
    if not in_notebook_kernel():
        watch(run_path, is_patient=False)
        return
    panel = LivePanel(run_path, phrase(LOOKING_ON))
    try:
        panel.look()
        while not panel.has_ended:
            time.sleep(LOOK_SECONDS)
            panel.look()
    finally:
        panel.finish()


def _print_next_steps(run_path: Path | None) -> None:
    name = "The training" if run_path is None else f"Run {run_path.name}"
    print(phrase("notebook.training_continues_detached", run=name))


def _summary_of(run_path: Path | None) -> Summary:
    if run_path is None:
        return {"status": "starting", "paths": {}}
    # none is written before the first step
    summary = read_summary(RunDirectory(run_path))
    return {"status": "running", **summary, "paths": paths_of(run_path)}


def _ended(run_path: Path, was_finished: bool) -> Summary:
    """Show how a run that another process trained has ended, and return its summary.

    Args:
        was_finished: whether the run was already finished when the watching began.

    Raises:
        RunFailedError: if the run failed, or was interrupted.
    """
    if not run_path.is_dir():
        raise RunFailedError("notebook.run_without_a_step", run=run_path.name)
    run = LiveRun(run_path)
    state = run.state
    run.close()
    summary = _summary_of(run_path)
    output = run_path / OUTPUT_FILE
    hint = phrase("notebook.full_output_file", output=output) if output.exists() else ""
    if state == "failed":
        raise RunFailedError(
            "notebook.run_failed", run=run_path.name, error=summary.get("error"), output=hint
        )
    if state == "interrupted":
        raise RunFailedError("notebook.run_interrupted", run=run_path.name, output=hint)
    if state == "stopped":
        print(
            phrase("notebook.run_stopped", step=summary.get("steps"), reason=summary.get("reason"))
        )
    elif state == "finished":
        return _completed(run_path, summary, was_finished)
    return summary


def _completed(run_path: Path, summary: Summary, was_finished: bool) -> Summary:
    """Complete the backup of a finished run, and report whether it is confirmed.

    The process that trained the run may still be waiting for the confirmation.
    """
    run = RunDirectory(run_path)
    if run.is_of_a_trainer():
        if not was_finished:
            print(*closing_lines(run_path, summary, in_notebook_kernel()), sep="\n")
        return summary
    deployment = _deployment(run.read_configuration(), print)
    return deployment.complete(run, in_notebook_kernel(), was_finished=was_finished)
