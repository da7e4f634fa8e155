"""The forecast of a run that does not exist yet, for Temper's own loop and for TRL."""

from pathlib import Path

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.training_config import SFT
from infrastructure.core.hardware import OtherPrograms
from infrastructure.deployment.forecast import Forecast, costs_of, made_of
from infrastructure.deployment.method_forecast import forecast_of_method
from infrastructure.optimization.device_errors import free_memory
from infrastructure.training.setup.compute_choice import choose_by_product
from infrastructure.training.trainer_factory import TrainerFactory


def forecast(config: DeploymentConfig) -> Forecast:
    """Forecast a run with the settings `config` by measuring a few of its own micro-batches.

    No run is trained or created. Prepared data stays in the cache, where the run will find it. The
    forecast time does not include answering held-out prompts before and after training.

    Raises:
        ValueError, TemperError: if the run could not start with this configuration, or does not
            fit.
    """
    measured = _measured if config.training.method == SFT else forecast_of_method
    try:
        return measured(config.changed([]))  # a copy: what is resolved stays internal
    finally:
        free_memory(torch.device("cuda" if torch.cuda.is_initialized() else "cpu"))


def _measured(config: DeploymentConfig) -> Forecast:
    trainer = TrainerFactory().for_run(config)
    choose_by_product(trainer)
    others, folder = OtherPrograms(), Path(config.output_dir)
    return made_of(trainer, costs_of(trainer), config, folder, measure_seconds=0.0, others=others)
