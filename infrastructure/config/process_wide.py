"""Settings that are the whole process's."""

import os

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer
from infrastructure.core.console_log import start_console_log
from infrastructure.core.messages import phrase


def take_effect(config: DeploymentConfig) -> None:
    """Set the console's level, and the GPUs that are seen, which holds until CUDA is first used."""
    start_console_log(config.log_level)
    if config.cuda_visible_devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = config.cuda_visible_devices


def wants_gpus_by_number(config: DeploymentConfig) -> bool:
    """Whether somebody has named GPUs for this training, and not for all programs of the machine:
    without them it would silently train on the processor."""
    devices = config.cuda_visible_devices
    is_given = config.source("cuda_visible_devices").layer is not Layer.ENVIRONMENT
    return config.device == "auto" and devices not in (None, "", "-1") and is_given


def no_such_gpu(config: DeploymentConfig) -> str:
    """The sentence where none of them is here."""
    return phrase("config.visible_device_not_found", devices=config.cuda_visible_devices)
