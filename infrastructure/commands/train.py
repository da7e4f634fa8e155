"""What the commands of `temper` do once their configuration is known. Imports torch."""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from infrastructure.backup.run_backup import place_options
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Setting
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.errors import NOT_CONFIRMED
from infrastructure.core.launched import Launched
from infrastructure.core.stop_signals import exit_code_of
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.deployment.going_on import configuration_of
from infrastructure.deployment.model_repair import repair_finished, repair_model
from infrastructure.deployment.signals import interrupt_on_signals
from infrastructure.evaluation.evaluate import evaluate_model
from infrastructure.run.directory import find_run
from infrastructure.run.repair import repair_records
from infrastructure.training.follower_process import follow
from infrastructure.training.parallel.membership import by_launcher, followers_dismissed

DONE, STOPPED = 0, 130


def train(config: DeploymentConfig, accept: Collection[str] = ()) -> int:
    """Go on with the run of this purpose, or start one; see `ended` for the exit code."""
    with interrupt_on_signals(), followers_dismissed():
        summary = TrainingDeployment(config, accept=accept).run()
    return ended(summary)


def resume(
    name: str | None,
    output_dir: str,
    changes: list[Setting] | None = None,
    accept: Collection[str] = (),
) -> int:
    """Go on with a run (see `find_run` for how it is named), as recorded but for `changes`."""
    options = BackupConfig(place=place_in(changes or []))
    repair_records(Path(output_dir), options, print)
    run, checkpoint = find_run(name, Path(output_dir))
    config = configuration_of(run, checkpoint).changed(changes or [])
    logging.getLogger().setLevel(config.log_level)
    if config.backup.place is None and "backup.place" in run.masked():
        print("note: backup.place held a password, which is never recorded: give --backup-place")
    deployment = TrainingDeployment(config, accept=accept)
    if checkpoint is None and not accept and run.is_finished():
        repair_finished(run, place_options(config), print)
    with interrupt_on_signals(), followers_dismissed():
        if checkpoint is None and run.is_finished() and not accept:
            print(f"Run {run.run_id} is finished: {run.final}; another RUN, or RUN@step, goes on")
            summary = deployment.complete(run)
        else:
            summary = deployment.resume(run, checkpoint)
    return ended(summary)


def compute_for_leader(told: Launched) -> int:
    """Be one of the processes that a launcher started beside the one that leads the training."""
    return follow(by_launcher(told))


def place_in(changes: Collection[Setting]) -> str | None:
    """The place that was given now, before it is known what the run recorded."""
    return next((str(s.value) for s in changes if s.key == "backup.place" and s.value), None)


def ended(summary: Mapping[str, Any]) -> int:
    """The exit code of a training: that of the signal which stopped it, or 130; 3 when it is
    finished, and its copy is not confirmed."""
    if summary["status"] != "stopped":
        return NOT_CONFIRMED if summary.get("backup", {}).get("problem") else DONE
    return exit_code_of(summary["signal"]) if summary["signal"] else STOPPED


def evaluate(config: DeploymentConfig) -> int:
    """Measure the model `config.model.name` on the data `config.data.eval_path`."""
    repair_model(Path(config.model.name))
    with interrupt_on_signals():
        lines = evaluate_model(config)
    for line in lines:
        print(line)
    return DONE
