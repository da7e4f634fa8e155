"""What the commands of `temper` do once their configuration is known. Imports torch."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.deployment.run_directory import find_run
from infrastructure.deployment.signals import interrupt_on_sigterm
from infrastructure.evaluation.evaluate import evaluate_model

DONE, STOPPED = 0, 130


def train(config: DeploymentConfig) -> int:
    """Start a new run; 130 when a signal stopped it."""
    with interrupt_on_sigterm():
        summary = TrainingDeployment(config).run()
    return STOPPED if summary["status"] == "stopped" else DONE


def resume(name: str | None, output_dir: str, changes: Mapping[str, Any] | None = None) -> int:
    """Go on with a run (see `find_run` for how it is named), as recorded but for `changes`."""
    run, checkpoint = find_run(name, Path(output_dir))
    config = run.read_configuration().copy_with(**changes or {})
    logging.getLogger().setLevel(config.log_level)
    if checkpoint is None and run.is_finished():
        print(f"Run {run.run_id} is finished: {run.final}; another RUN, or RUN@step, goes on")
        return DONE
    with interrupt_on_sigterm():
        summary = TrainingDeployment(config).resume(run, checkpoint)
    return STOPPED if summary["status"] == "stopped" else DONE


def evaluate(config: DeploymentConfig) -> int:
    """Measure the model `config.model.name` on the data `config.data.eval_path`."""
    with interrupt_on_sigterm():
        lines = evaluate_model(config)
    for line in lines:
        print(line)
    return DONE
