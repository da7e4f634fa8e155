"""Sample data that comes with the project: instruction examples of several kinds of task."""

from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.resolve import trains_from_scratch

SAMPLE_TRAIN = Path(__file__).parent / "train.jsonl"
SAMPLE_HELDOUT = Path(__file__).parent / "heldout.jsonl"


def use_sample_data(config: DeploymentConfig) -> None:
    """The embedded model without a data path trains on the sample tasks that come with it."""
    if config.data.path is None and trains_from_scratch(config.model):
        config.data.path = str(SAMPLE_TRAIN)
        config.data.eval_path = config.data.eval_path or str(SAMPLE_HELDOUT)
        config.data.task_column = config.data.task_column or "task"
