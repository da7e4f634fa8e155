"""Model and data that are paths of this machine, looked at before torch is loaded."""

from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.files import recover_directory
from infrastructure.training.data.readers.sources import HUGGINGFACE, discover, may_be_on_the_hub
from infrastructure.training.methods.check import check_method
from infrastructure.training.models.model_path import refuse_file, refuse_missing


def check_paths(config: DeploymentConfig) -> None:
    """Refuse model and data where nothing lies, or nothing that can be read, or that do not go
    with `training.method`.

    Raises:
        ValueError: says what is there instead.
    """
    path = Path(config.model.name).expanduser()
    if not path.exists():
        recover_directory(path)  # a saved model whose replacement was killed half-way
    if path.exists():
        refuse_file(path)
    else:
        refuse_missing(config.model.name)
    data = config.data
    for place, what in ((data.path, "training data"), (data.eval_path, "held-out data")):
        if place and data.format != HUGGINGFACE and not may_be_on_the_hub(place):
            discover(place, data.format, what, encoding=data.encoding)
    check_method(config)
