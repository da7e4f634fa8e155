"""The forecast of a run that TRL trains, measured with a few of TRL's own steps beforehand."""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.console import Report
from infrastructure.core.hardware import OtherPrograms
from infrastructure.core.messages import phrase
from infrastructure.deployment.forecast import (
    USUAL_SAVE_SECONDS,
    Forecast,
    RunForecast,
    bytes_of_first_version,
    bytes_of_model,
    bytes_of_version,
    log_without_forecast,
    space_of,
)
from infrastructure.monitoring.records.run_view import from_here
from infrastructure.optimization.batch_size import DoesNotFitError
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.run.directory import RunDirectory
from infrastructure.run.record_types import ForecastRow
from infrastructure.run.replication import RunReplication
from infrastructure.run.summary_text import steps_ahead
from infrastructure.training.checkpoints.checkpoint_manager import BACKGROUND_BYTES
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.methods.method_table import RowKind
from infrastructure.training.methods.step_probe import (
    ProbedCosts,
    StepProbe,
    create_optimizer_of,
    steps_per_epoch,
)
from infrastructure.training.methods.trl_training import TrlTraining
from infrastructure.training.sizing.cost_measurement import LOOP_SECONDS, SAVING_BYTES


class MethodForecast(Observer):
    """An observer that makes a forecast of a TRL run, and compares it with the actual values at the
    end.

    Args:
        copies: the backup of the run, whose destination is checked for free space.

    Attributes:
        trainer: the Trainer; must be set before training starts.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: DeploymentConfig,
        report: Report,
        copies: RunReplication,
        training: TrlTraining,
    ) -> None:
        self.kept = RunForecast(run, config, report, measure_seconds=0.0)
        self.run, self.config, self.report = run, config, report
        self.copies, self.training = copies, training
        self.trainer: Any = None
        self._began: float | None = None

    def train_start(self, state: TrainingState) -> None:
        """Measure some steps, and show the forecast.

        Raises:
            DoesNotFitError: if a step needs more memory than is available.
            StorageError: if the checkpoints will not fit on a disk.
        """
        version = bytes_of_version(state.model, create_optimizer_of(self.trainer))
        self.copies.check_free_space(version, state.total_steps)
        try:
            with self.report.waiting(phrase("deployment.measuring_step")):
                forecast = measured(self.training, self.trainer, self.run.path)
        except DoesNotFitError:
            raise
        except Exception as error:
            log_without_forecast(error)
        else:
            self.kept.keep(forecast, state.step)
        ahead = steps_ahead(state.step, state.total_steps)
        begins = phrase(
            "deployment.training_starts", run=from_here(self.kept.run.path), steps=ahead
        )
        self.report(f"{begins}{phrase('run.ctrl_c_saves_and_stops')}")
        self._began = time.monotonic()

    def compared(self) -> list[ForecastRow]:
        """Return rows of predicted and actual values; empty if nothing was predicted."""
        return [] if self._began is None else self.kept.compared(time.monotonic() - self._began)


def measured(training: TrlTraining, trainer: Any, folder: Path) -> Forecast:
    """Measure a few steps of a Trainer that is ready to train, and return a forecast.

    Args:
        folder: the folder in which the run is or will be.

    Raises:
        DoesNotFitError: if a step needs more memory than is available.
    """
    config, done, total = training.config, trainer.state.global_step, trainer.state.max_steps
    left = total - done
    writes = training.installed.method.rows is RowKind.PROMPTS
    limit_bytes = MemoryBudget.of(config).limit_bytes(training.device)
    others = OtherPrograms()
    costs = StepProbe(trainer, writes, limit_bytes).costs(left)
    per_epoch = steps_per_epoch(trainer, trainer.callback_handler.train_dataloader)
    seconds = left * (costs.step_seconds + LOOP_SECONDS)
    seconds += evaluations_left(training, trainer, per_epoch) * costs.evaluation_seconds
    forecast = _with_disk(training, trainer, costs, seconds, per_epoch, folder)
    is_on_cpu = training.device.type == "cpu" and trainer.accelerator.num_processes == 1
    return replace(forecast, others_share=others.share() if is_on_cpu else None)


def _with_disk(
    training: TrlTraining,
    trainer: Any,
    costs: ProbedCosts,
    seconds: float,
    per_epoch: int,
    folder: Path,
) -> Forecast:
    config, done, total = training.config, trainer.state.global_step, trainer.state.max_steps
    version = bytes_of_version(trainer.model, create_optimizer_of(trainer))
    is_lora = hasattr(trainer.model, "peft_config")
    is_copied = training.device.type == "cpu" and version >= BACKGROUND_BYTES
    return Forecast(
        num_steps=total - done,
        step_seconds=costs.step_seconds + LOOP_SECONDS,
        seconds=seconds,
        peak_memory_bytes=costs.peak_bytes + (version + SAVING_BYTES if is_copied else 0),
        memory_bytes=costs.limit_bytes,
        **space_of(
            config,
            folder,
            num_steps=total,
            num_saves=saves_left(config, total, per_epoch, seconds),
            version_bytes=version,
            final_bytes=bytes_of_model(trainer.model, is_lora=is_lora),
            first_bytes=bytes_of_first_version(trainer.model),
            # The version that it resumes from, in the Trainer's format.
            other_bytes=version if done else 0,
        ),
        session_seconds=config.training.deadline,
        measure_seconds=costs.evaluation_seconds,
        price_per_hour=config.price_per_hour,
        has_smaller_pieces=False,
        has_growing_answers=costs.writes,
    )


def evaluations_left(training: TrlTraining, trainer: Any, per_epoch: int) -> int:
    """Return how often the held-out rows will be evaluated in the rest of the run.

    Evaluations happen before the first step, at regular steps, and at the end; see
    `training_rhythm`.
    """
    if not training.data.held_out:
        return 0
    settings, done, total = (
        training.config.training,
        trainer.state.global_step,
        trainer.state.max_steps,
    )
    steps = {total}
    if (every := settings.validation_frequency) is not None:
        steps.update(range(every, total, every))
    if (epochs := settings.validation_interval) is not None:
        steps.update(range(epochs * per_epoch, total, epochs * per_epoch))
    return sum(step > done for step in steps) + bool(trainer.args.eval_on_start)


def saves_left(config: DeploymentConfig, total: int, per_epoch: int, seconds: float) -> int:
    """Estimate how many checkpoints will be saved: at the start, by steps, by time, and at
    the end.
    """
    training = config.training
    steps = {0, total}
    if (every := training.checkpoint_frequency) is not None:
        steps.update(range(every, total, every))
    if (epochs := training.checkpoint_interval) is not None:
        steps.update(range(epochs * per_epoch, total, epochs * per_epoch))
    by_clock = int(seconds // USUAL_SAVE_SECONDS) if training.checkpoint_seconds else 0
    return len(steps) + by_clock


class _MeasuredError(Exception):
    """An exception that carries the forecast and ends `Trainer.train` before its first step."""

    def __init__(self, forecast: Forecast) -> None:
        super().__init__("measured")
        self.forecast = forecast


def forecast_of_method(config: DeploymentConfig) -> Forecast:
    """Forecast a run with the settings `config` that TRL will train.

    Raises:
        ValueError, TemperError: if the run could not start with this configuration, or does not
            fit.
    """
    from transformers import TrainerCallback

    with tempfile.TemporaryDirectory() as folder:
        training = TrlTraining(config, Path(folder))
        training.choose_by_product()
        trainer = training.make_trainer(is_new=True)

        class Measure(TrainerCallback):
            def on_train_begin(self, *_: object, **parts: object) -> None:
                raise _MeasuredError(measured(training, trainer, Path(config.output_dir)))

        trainer.add_callback(Measure())
        try:
            trainer.train()
        except _MeasuredError as measurement:
            return measurement.forecast
    raise AssertionError("a Trainer begins with on_train_begin")
