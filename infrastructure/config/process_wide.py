"""Settings that are the whole process's."""

import os

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.console_log import start_console_log


def take_effect(config: DeploymentConfig) -> None:
    """Set the console's level, and the GPUs that are seen, which holds until CUDA is first used."""
    start_console_log(config.log_level)
    if config.cuda_visible_devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = config.cuda_visible_devices
