"""The process that `temper train --detach` starts; see `deployment.detached`."""

import argparse
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from infrastructure.commands.ranks import on_several_processes
from infrastructure.commands.train import exit_code_of_training
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.process_wide import take_effect
from infrastructure.config.sources.spelling import as_keyword
from infrastructure.core.console import show
from infrastructure.core.features import loaded
from infrastructure.core.files import write_text
from infrastructure.core.messages import phrase, spelled_by
from infrastructure.core.stop_signals import interrupt_on_signals
from infrastructure.deployment.detached import FINISHED_BEFORE_NAME, OUTPUT_NAME, RUN_NAME
from infrastructure.monitoring.logging_config import OUTPUT_FILE
from infrastructure.run.directory import RunDirectory

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("folder")


def run(options: argparse.Namespace) -> int:
    """Train the run whose configuration arrives on standard input."""
    text = sys.stdin.read()
    given = json.loads(text)
    config = DeploymentConfig.from_dict(given["configuration"])
    config.note_environment(given["environment_notes"])
    take_effect(config)
    run_path = None if given["run"] is None else Path(given["run"])
    folder = Path(options.folder)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a detached run must outlive the terminal
    code = on_several_processes(
        config,
        options.words_given,
        text.encode(),
        lambda run_path: _move_output(folder / OUTPUT_NAME, run_path / OUTPUT_FILE),
    )
    if code is not None:
        return code
    # its output is read where it was started, so settings are spelled as there
    with spelled_by(as_keyword) if given.get("is_python") else nullcontext():
        return train(folder, config, given["accept"], run_path, given["observer"])


def train(
    folder: Path,
    config: DeploymentConfig,
    accept: Collection[str],
    run_path: Path | None = None,
    observer: Sequence[Any] | None = None,
) -> int:
    """Start or resume a run, by default the one that `temper train` would choose.

    The path of the run is written to `folder`. The output of this process is moved to the run's
    directory.

    Args:
        observer: see `detached.start`.
    """
    from infrastructure.deployment.deploy_training import TrainingDeployment

    is_begun = False

    def begun(run_path: Path) -> None:
        nonlocal is_begun
        is_begun = True
        _move_output(folder / OUTPUT_NAME, run_path / OUTPUT_FILE)
        write_text(folder / RUN_NAME, str(run_path.absolute()))

    with interrupt_on_signals():
        observers = [] if observer is None else [loaded(observer[0])(observer[1])]
        deployment = TrainingDeployment(config, show, accept, begun, observers=observers)
        summary = deployment.run() if run_path is None else deployment.go_on(RunDirectory(run_path))
    if not is_begun:
        # First, because a follower waits for the file below.
        write_text(folder / FINISHED_BEFORE_NAME, "")
    write_text(folder / RUN_NAME, str(Path(summary["paths"]["run"]).absolute()))
    return exit_code_of_training(summary)


def _move_output(before: Path, after: Path) -> None:
    """Move the output of this process from the file `before` to the end of the file `after`."""
    try:
        after.parent.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        with after.open("ab") as output:
            if before.exists():  # another process that used it may have moved it
                with before.open("rb") as earlier_output:
                    shutil.copyfileobj(earlier_output, output)
                output.flush()
            for stream in (sys.stdout, sys.stderr):
                os.dup2(output.fileno(), stream.fileno())
        before.unlink(missing_ok=True)
    except OSError as error:  # output continues to go to the old file
        log.warning(phrase("commands.output_not_moved", path=before, error=error))
