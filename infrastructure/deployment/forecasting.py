"""What a run will take, measured before there is a run: of Temper's own loop, or of TRL's."""

from pathlib import Path

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.training_config import SFT
from infrastructure.core.hardware import OtherPrograms
from infrastructure.deployment.forecast import Forecast, costs_of, made_of
from infrastructure.deployment.method_forecast import forecast_of_method
from infrastructure.training.core.error_handlers import free_memory
from infrastructure.training.setup.compute_choice import choose_by_product
from infrastructure.training.trainer_factory import TrainerFactory


def forecast(config: DeploymentConfig) -> Forecast:
    """What a run of `config` will take, measured now with a few of its own micro-batches.

    Trains nothing and makes no run; prepared data stays in the cache, where the run finds it. The
    measuring before and after the training, by answering held-out prompts, is not in its time.

    Raises:
        ValueError, TemperError: the run could not be started like this, or does not fit.
    """
    measured = _measured if config.training.method == SFT else forecast_of_method
    try:
        return measured(config.changed([]))  # what is found out about it is not the caller's
    finally:
        free_memory(torch.device("cuda" if torch.cuda.is_initialized() else "cpu"))


def _measured(config: DeploymentConfig) -> Forecast:
    trainer = TrainerFactory().for_run(config)
    choose_by_product(trainer)
    others, folder = OtherPrograms(), Path(config.output_dir)
    return made_of(trainer, costs_of(trainer), config, folder, measure_seconds=0.0, others=others)
