"""Settings that apply to the whole process."""

import os

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer
from infrastructure.core.console_log import start_console_log
from infrastructure.core.messages import phrase


def take_effect(config: DeploymentConfig) -> None:
    """Apply the settings for the console's log level and for the visible GPUs to this process.

    Visible GPUs can be set only before CUDA is first used.
    """
    start_console_log(config.log_level)
    if config.cuda_visible_devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = config.cuda_visible_devices


def wants_gpus_by_number(config: DeploymentConfig) -> bool:
    """Return whether the user chose GPUs by number for this run, not for the whole machine.

    If these GPUs did not exist, the run would silently train on the CPU.
    """
    devices = config.cuda_visible_devices
    is_given = config.source("cuda_visible_devices").layer is not Layer.ENVIRONMENT
    return config.device == "auto" and devices not in (None, "", "-1") and is_given


def no_such_gpu(config: DeploymentConfig) -> str:
    """Return the error for a run if none of its chosen GPUs exists."""
    return phrase("config.visible_device_not_found", devices=config.cuda_visible_devices)
