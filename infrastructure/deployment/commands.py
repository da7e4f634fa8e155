"""What the commands of `temper` do once their configuration is known. Imports torch."""

from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.deployment.run_directory import find_run
from infrastructure.evaluation.evaluate import evaluate_model
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager, verify

DONE, STOPPED = 0, 130


def train(config: DeploymentConfig) -> int:
    """Start a new run; 130 when a signal stopped it."""
    summary = TrainingDeployment(config).run()
    return STOPPED if summary["status"] == "stopped" else DONE


def resume(name: str | None, output_dir: str) -> int:
    """Go on with a run; see `find_run` for how it is named."""
    run, checkpoint = find_run(name, Path(output_dir))
    config = DeploymentConfig.from_dict(run.read_run()["configuration"])
    checkpoint = checkpoint or CheckpointManager(run.checkpoints).newest()
    verify(checkpoint)  # before anything that takes time
    summary = TrainingDeployment(config).resume(run, checkpoint)
    return STOPPED if summary["status"] == "stopped" else DONE


def evaluate(config: DeploymentConfig) -> int:
    """Measure the model `config.model.name` on the data `config.data.eval_path`."""
    for line in evaluate_model(config):
        print(line)
    return DONE
