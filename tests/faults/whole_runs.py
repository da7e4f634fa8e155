"""Small whole runs with a place, each in a fork of a parent that has torch: made, stopped, killed,
and gone on with by the same command.

A folder holds all of it: `runs/` (the output folder), `place/`, `cache/`, `rows.jsonl`; what a
command says lies beside it.
"""

import contextlib
import ctypes
import gc
import hashlib
import logging
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from infrastructure.deployment.deploy_training import DeploymentConfig, TrainingDeployment
from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Hook, Observer
from tests.deployment.runs import small_settings
from tests.faults import copier_here
from tests.faults.kill_storm import in_child
from tests.forks import import_what_takes_long

PR_SET_CHILD_SUBREAPER = 36
NUM_STEPS, STOP_AT = 8, 5
SETTINGS = {
    "max_steps": NUM_STEPS,
    "keep_checkpoints": 3,
    "validation_frequency": 3,
    "metrics_sinks": ["jsonl", "csv"],
}
OBSERVERS = TrainingDeployment._observers


class EndAt(Observer):
    """Ends the training in order, or by SIGKILL of itself."""

    def __init__(self, step: int, *, kills: bool) -> None:
        self.step, self.kills = step, kills

    def checkpoint_saved(self, state: TrainingState) -> None:
        if state.step < self.step:
            return
        if self.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        state.interrupt("a test stops it")


@dataclass(frozen=True)
class Ran:
    """What one command did.

    Attributes:
        code: 0: it came to its end; 1: it raised; -9: it was killed.
        output: what it told and logged.
    """

    code: int
    output: str


def import_all() -> None:
    """What every run imports, once, by the parent of all."""
    adopt_orphans()
    torch.set_num_threads(1)
    import_what_takes_long()
    gc.freeze()  # a child that collects would copy all of it, page by page


def configuration(folder: Path, *, has_place: bool = True, **training: Any) -> DeploymentConfig:
    settings = small_settings(folder, **{**SETTINGS, **training})
    settings["backup"] = {"place": str(folder / "place")} if has_place else {}
    return DeploymentConfig(**settings, log_level="WARNING")


def train(
    folder: Path,
    *,
    end_at: int | None = None,
    kills: bool = False,
    with_helpers: bool = False,
    **options: Any,
) -> Ran:
    """The command, as a person would give it again; or one that ends at a step.

    Args:
        with_helpers: copy in a process of its own, and not in a thread.
    """

    def work() -> None:
        if end_at is not None:
            _end_at(end_at, kills)
        if not with_helpers:
            copier_here.use_it()
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(output_file(folder).open("w", buffering=1))
            stack.enter_context(contextlib.redirect_stdout(output))
            stack.enter_context(contextlib.redirect_stderr(output))
            logging.getLogger().addHandler(logging.StreamHandler(output))
            config = configuration(folder, **options)
            TrainingDeployment(config, say=lambda line: print(line, file=output)).run()

    return ran(folder, work)


def ran(folder: Path, work: Callable[[], None]) -> Ran:
    """`work` in a child, and what it said."""
    output_file(folder).write_text("")
    _, status = os.waitpid(in_child(lambda: _traced(folder, work)), 0)
    return Ran(os.waitstatus_to_exitcode(status), output_file(folder).read_text(errors="replace"))


def _traced(folder: Path, work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:
        with output_file(folder).open("a") as output:
            print(f"{type(error).__name__}: {error}", file=output)
        raise


def _end_at(step: int, kills: bool) -> None:
    def observers(self: TrainingDeployment, run: Any, copies: Any) -> list[Hook]:
        return [*OBSERVERS(self, run, copies), EndAt(step, kills=kills)]

    TrainingDeployment._observers = observers  # type: ignore[method-assign]


def adopt_orphans() -> None:
    """Be the parent of what killed trainings leave behind, so that its end can be waited for."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait_for_helpers() -> None:
    """Until no helper of a training is left: a copier outlives it, and copies what is there."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def output_file(folder: Path) -> Path:
    """Where a command's output goes: not onto a disk that is about to fail."""
    return folder.with_name(f"{folder.name}.said")


def run_in(folder: Path) -> Path:
    """The one run of a folder."""
    [run] = [path.parent for path in (folder / "runs").glob("*/checkpoints")]
    return run


def losses_of(run: Path) -> list[tuple[int, float]]:
    records = read_metrics(run / "metrics.jsonl")
    return [(record["step"], record["loss"]) for record in records if "loss" in record]


def result_of(run: Path) -> tuple[str, list[tuple[int, float]]]:
    """The trained weights, as a hash, and the loss of each step."""
    weights = (run / "final" / "model.safetensors").read_bytes()
    return hashlib.sha256(weights).hexdigest(), losses_of(run)


def copy_of(template: Path, folder: Path) -> None:
    """Put the folder back to what the template holds; times of files stay."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder, symlinks=True)
