"""What a detached training does in its own process: see `detached`. Imports torch."""

import logging
import os
import shutil
import signal
import sys
from collections.abc import Collection
from pathlib import Path

from infrastructure.commands.train import ended
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.files import write_text
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.deployment.detached import OUTPUT_NAME, RUN_NAME
from infrastructure.deployment.signals import interrupt_on_signals
from infrastructure.monitoring.logging_config import OUTPUT_FILE

log = logging.getLogger(__name__)


def train(folder: Path, config: DeploymentConfig, accept: Collection[str]) -> int:
    """Train; `folder` is told which run it is, and what is said goes to that run's directory."""

    def begun(run_path: Path) -> None:
        _move_output(folder / OUTPUT_NAME, run_path / OUTPUT_FILE)
        write_text(folder / RUN_NAME, str(run_path.absolute()))

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it outlives the terminal, that is what it is for
    with interrupt_on_signals():
        summary = TrainingDeployment(config, accept=accept, begun=begun).run()
    write_text(folder / RUN_NAME, str(Path(summary["paths"]["run"]).absolute()))
    return ended(summary)


def _move_output(before: Path, after: Path) -> None:
    """From here on what this process says is added to `after`; what it has said comes first."""
    try:
        after.parent.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        with after.open("ab") as output:
            with before.open("rb") as said:
                shutil.copyfileobj(said, output)
            output.flush()
            for stream in (sys.stdout, sys.stderr):
                os.dup2(output.fileno(), stream.fileno())
        before.unlink()
    except OSError as error:  # it goes on where it went until now
        log.warning("the output stays in %s: %s", before, error)
