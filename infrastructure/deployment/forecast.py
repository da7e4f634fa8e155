"""The forecast of a run before its first step. At the end, it is compared with the actual values.

Memory and time are measured with a few of the run's own micro-batches. Disk and backup space are
computed from the size of a checkpoint. A run that cannot fit in memory is rejected before it
starts. If only smaller micro-batches fit, the run uses them; its result is the same.
"""

import logging
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import torch

from infrastructure.backup.run_backup import place_options
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.methods import SFT
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.checksums import write_record
from infrastructure.core.console import Report, details
from infrastructure.core.error_place import caller_place
from infrastructure.core.files import paths_below
from infrastructure.core.hardware import OtherPrograms, disk_free_bytes
from infrastructure.core.integers import ceil_div
from infrastructure.core.json_text import json_of
from infrastructure.core.messages import phrase
from infrastructure.core.price import parse_price
from infrastructure.models.trainable_state import trainable_state
from infrastructure.monitoring.drawing.formatting import format_bytes, format_duration, format_share
from infrastructure.monitoring.records.run_view import from_here
from infrastructure.optimization.batch_size import DoesNotFitError
from infrastructure.optimization.device_errors import free_memory
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.optimization.optimizer_memory import CreateOptimizer, optimizer_state_bytes
from infrastructure.optimization.peak_memory import PeakMemory
from infrastructure.run.directory import RunDirectory
from infrastructure.run.record_types import ForecastRow
from infrastructure.run.replication import RunReplication, newest_kept, versions_kept
from infrastructure.run.summary_text import steps_ahead
from infrastructure.training.checkpoints.checkpoint_manager import BACKGROUND_BYTES
from infrastructure.training.core.state import RecoveryKind, TrainingState
from infrastructure.training.distributed.shard import Sharding
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.methods.step_probe import (
    ProbedCosts,
    StepProbe,
    create_optimizer_of,
    steps_per_epoch,
)
from infrastructure.training.methods.trl_training import TrlTraining
from infrastructure.training.recovery.recovery_log import record_recovery
from infrastructure.training.setup.compute_choice import choose_by_product
from infrastructure.training.sizing.cost_measurement import LOOP_SECONDS, SAVING_BYTES, StepCosts
from infrastructure.training.sizing.spread_costs import spread_costs
from infrastructure.training.trainer_factory import TrainerFactory

BUSY_SHARE = 0.2  # of the processors, used by other programs
MAX_PLAN_LINES = 24  # phases that differ only in their layers share one
SMALL_BYTES = 100_000  # of a version: random states, run files, manifest

log = logging.getLogger(__name__)

FILE = "forecast.json"
USUAL_SAVE_SECONDS = 120.0  # between two checkpoints by time
# How long saving pauses training: measured on two cores, with versions of 8 and 150 MB.
SAVE_SECONDS, SAVE_SECONDS_PER_BYTE = 0.08, 6e-9
SMALL_FILES_BYTES = 200_000  # report, settings, logs
STEP_BYTES = 800  # a step's metrics: as JSON, in the table, for TensorBoard


@dataclass(frozen=True)
class Forecast:
    """The time, memory, disk space and price that the rest of a run will take.

    Attributes:
        num_steps: the remaining optimizer steps.
        seconds: the time until the end, including the evaluation of the trained model.
        peak_memory_bytes, memory_bytes: the memory that the process needs (on a GPU, its GPU
            memory), and its limit.
        disk_bytes: the size of the run directory at the end, if the best checkpoint is among the
            newest.
        most_disk_bytes: the largest size at any time, when an older best checkpoint is kept and
            another checkpoint is being written.
        disk_free_bytes: the disk space that is free now.
        backup_bytes: the size at the backup destination at the end, or None without a destination.
        session_seconds: the time until the session ends, or None if unknown.
        measure_seconds: the time of the evaluation before training. The evaluation after training
            takes about as long.
        num_processes: the number of processes that share each step. The time of their communication
            is not predicted.
        price_per_hour: the price of this machine, or None if not given.
        has_smaller_pieces: whether a micro-batch that does not fit is computed in smaller pieces.
        others_share: the share of the processors that other programs used during the measurement,
            or None if the run is not on a CPU or has several processes.
        has_growing_answers: whether steps generate answers, which may become longer than the
            measured ones.
    """

    num_steps: int
    step_seconds: float
    seconds: float
    peak_memory_bytes: int
    memory_bytes: int
    disk_bytes: int
    disk_free_bytes: int | None
    backup_bytes: int | None
    session_seconds: float | None
    measure_seconds: float
    num_processes: int = 1
    most_disk_bytes: int = 0
    price_per_hour: str | None = None
    has_smaller_pieces: bool = True
    has_growing_answers: bool = False
    others_share: float | None = None

    def lines(self) -> list[str]:
        """Return the forecast as lines for the user, including whether the run fits."""
        memory, disk = format_bytes(self.peak_memory_bytes), format_bytes(self.disk_bytes)
        most_disk = format_bytes(max(self.most_disk_bytes, self.disk_bytes))
        backup = f", {format_bytes(self.backup_bytes)} of backup" if self.backup_bytes else ""
        shared = phrase("deployment.forecast_processes", num_processes=self.num_processes)
        shared = shared if self.num_processes > 1 else ""
        other_seconds = self.seconds - self.num_steps * self.step_seconds
        rest = phrase("deployment.forecast_rest") if other_seconds > self.seconds / 3 else ""
        cost = ""
        if self.price_per_hour is not None:
            cost = f", so about {parse_price(self.price_per_hour).text(self.seconds)},"
        summary = phrase(
            "deployment.forecast_summary",
            time=format_duration(self.seconds),
            cost=cost,
            num_steps=self.num_steps,
            step_seconds=self.step_seconds,
            shared=shared,
            rest=rest,
            memory=memory,
            memory_limit=format_bytes(self.memory_bytes),
            disk=disk,
            most_disk=most_disk,
            backup=backup,
        )
        if self.has_growing_answers:
            summary += phrase("deployment.forecast_growing_answers")
        if self.others_share is not None and self.others_share >= BUSY_SHARE:
            summary += phrase(
                "deployment.forecast_busy_cpu",
                share=format_share(self.others_share),
            )
        problems = self.problems()
        if problems:
            return [
                summary,
                phrase("deployment.forecast_does_not_fit", problems="; ".join(problems)),
            ]
        until = self.session_seconds
        if not until:
            return [summary]
        return [summary, phrase("deployment.forecast_fits", time=format_duration(until))]

    def problems(self) -> list[str]:
        """Return a message and a remedy for each resource that is too small; empty if all
        suffice.
        """
        problems = []
        if self.session_seconds is not None and self.seconds > self.session_seconds:
            problems.append(
                phrase(
                    "deployment.session_ends_first",
                    time=format_duration(self.session_seconds),
                )
            )
        if self.peak_memory_bytes > self.memory_bytes:
            problems.append(
                phrase(
                    "deployment.micro_batch_does_not_fit",
                    consequence=phrase(
                        "deployment.micro_batch_is_split"
                        if self.has_smaller_pieces
                        else "deployment.run_will_stop_there"
                    ),
                )
            )
        needed = max(self.disk_bytes, self.most_disk_bytes)
        if self.disk_free_bytes is not None and needed > self.disk_free_bytes:
            problems.append(
                phrase(
                    "deployment.forecast_disk_full",
                    free=format_bytes(self.disk_free_bytes),
                )
            )
        return problems


class RunForecast:
    """The forecast of one run, from before its first step to the comparison in its report.

    Args:
        report: a function that shows a line to the user.
        measure_seconds: the time of the evaluation before training; by default, taken from the
            run's last forecast.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: DeploymentConfig,
        report: Callable[[str], None],
        measure_seconds: float | None = None,
    ) -> None:
        self.path = run.path / FILE
        self.run, self.config, self.report = run, config, report
        known: Any = json_of(self.path).get("measure_seconds", 0.0)
        self.measure_seconds = known if measure_seconds is None else measure_seconds
        self.forecast: Forecast | None = None
        self.first_step = 0  # at which it was made: the time is for the steps left then
        self.peak = PeakObserver()

    def measure(self, trainer: EnhancedTrainer) -> None:
        """Measure some steps, and show the forecast.

        The run stays unchanged, except that its micro-batches may be reduced to fit in memory.

        Raises:
            DoesNotFitError: if not even one example fits in memory. With
                `enable_memory_optimization` off, this is only reported.
        """
        parts = trainer.strategy.run_parts(trainer)
        try:
            others = OtherPrograms()
            costs = costs_of(trainer)
            forecast = made_of(
                trainer, costs, self.config, self.run.path, self.measure_seconds, others
            )
        except DoesNotFitError as error:
            if self.config.enable_memory_optimization:
                raise
            self.report(phrase("deployment.starts_despite_memory", reason=error))
            self._report_plan(parts.lines())
            return
        except Exception as error:
            log_without_forecast(error)
            self._report_plan(parts.lines())
            return
        self._report_plan(parts.lines(costs.step_seconds))
        for extension in trainer.hooks.extensions:
            extension.forecast_known(costs.step_seconds)
        self.keep(forecast, trainer.state.step)
        if self.config.enable_memory_optimization and trainer.device.type == "cpu":
            self._keep_within(trainer, costs)

    def keep(self, forecast: Forecast, first_step: int) -> None:
        """Show a forecast for the steps from `first_step` on, and store it in the run."""
        self.forecast, self.first_step = forecast, first_step
        for line in forecast.lines():
            self.report(line)
        write_record(self.path, asdict(forecast))

    def compared(self, seconds: float) -> list[ForecastRow]:
        """Return rows of predicted and actual values for summary.json; empty if there is no
        forecast.
        """
        if self.forecast is None:
            return []
        truth = {
            "seconds": seconds,
            "peak_memory_bytes": self.peak.highest_bytes,
            "disk_bytes": _bytes_in(self.run.path),
        }
        predicted = asdict(self.forecast)
        return [
            {
                "what": name,
                "foretold": predicted[name],
                "was": was,
                "error": predicted[name] / was - 1,
                "first_step": self.first_step,
            }
            for name, was in truth.items()
            if was and predicted[name] is not None
        ]

    def _report_plan(self, lines: list[str]) -> None:
        """Show the plan of the phases. A long plan is shown completely only in verbose output."""
        is_long = len(lines) > MAX_PLAN_LINES
        for index, line in enumerate(lines):
            (details(self.report) if is_long and index else self.report)(line)

    def _keep_within(self, trainer: EnhancedTrainer, costs: StepCosts) -> None:
        """Reduce the micro-batch if it does not fit in memory."""
        state = trainer.state
        size = costs.largest_that_fits(state.micro_batch_size)
        if size == 0:
            needed, there = format_bytes(costs.peak_of(1)), format_bytes(costs.limit_bytes)
            raise DoesNotFitError(
                "deployment.out_of_memory_before_start",
                needed=needed,
                available=there,
                remedies=phrase("deployment.lower_memory_use"),
                alternative=trainer.memory_budget.way_out(trainer.device),
            )
        if size < state.micro_batch_size:
            state.micro_batch_size = size
            why = f"{format_bytes(costs.peak_bytes)} of {format_bytes(costs.limit_bytes)}"
            record_recovery(
                state,
                RecoveryKind.OUT_OF_MEMORY,
                phrase("deployment.starts_with_micro_batches", size=size),
                why,
            )
            self.report(phrase("deployment.micro_batches_reduced", size=size, memory=why))


def log_without_forecast(error: Exception) -> None:
    """Log that no forecast could be made. The run itself will report the cause."""
    at = f" at {where}" if (where := caller_place(error)) else ""
    log.warning(phrase("deployment.no_forecast", error=error, at=at))


class Space(TypedDict):
    """The disk space of a forecast, as fields of `Forecast`."""

    disk_bytes: int
    most_disk_bytes: int
    disk_free_bytes: int | None
    backup_bytes: int | None


def space_of(
    config: DeploymentConfig,
    folder: Path,
    *,
    num_steps: int,
    num_saves: int,
    version_bytes: int,
    final_bytes: int,
    other_bytes: int = 0,
    passing_bytes: int = 0,
    first_bytes: int | None = None,
) -> Space:
    """Return the size of a run's checkpoints and trained model, on this machine and in the backup.

    Args:
        folder: the folder in which the run is or will be.
        num_steps, num_saves: the number of steps and of saved checkpoints of the whole run.
        other_bytes: the size of other files that remain after the run.
        passing_bytes: the size of temporary files, which are removed before the run ends. They are
            not part of `other_bytes`.
        first_bytes: the size of a checkpoint that is saved before the first step, without optimizer
            state, or None if none is saved then.
    """
    options = place_options(config)
    kept = min(newest_kept(config.training, num_steps), num_saves)
    most = min(versions_kept(config.training, num_steps), num_saves) + 1
    tokenizer_bytes = 2 * _bytes_in(
        RunDirectory(folder).tokenizer
    )  # the model's folder has a second copy of it
    beside = final_bytes + other_bytes + tokenizer_bytes
    beside += SMALL_FILES_BYTES + num_steps * STEP_BYTES
    versions_bytes = kept * version_bytes
    if first_bytes is not None and kept == num_saves:  # the first one is kept
        versions_bytes += first_bytes - version_bytes
    at_place = options.keep * version_bytes + final_bytes
    return {
        "disk_bytes": versions_bytes + beside,
        "most_disk_bytes": most * version_bytes + beside + passing_bytes,
        "disk_free_bytes": disk_free_bytes(folder),
        "backup_bytes": None if options.place is None else at_place,
    }


def made_of(
    trainer: EnhancedTrainer,
    costs: StepCosts,
    config: DeploymentConfig,
    folder: Path,
    measure_seconds: float,
    others: OtherPrograms,
) -> Forecast:
    """Return a forecast for the remaining steps of a trainer that is ready to train.

    Args:
        folder: the folder in which the run is or will be.
        measure_seconds: the time of the evaluation before training.
        others: the load of other programs, measured from before the first measured step.
    """
    loop, state = trainer.prepare().loop, trainer.state
    left = loop.total_steps - state.step
    per_epoch = max(1, ceil_div(loop.data.num_examples, loop.global_batch_size))
    evaluations = 0
    if loop.evaluate is not None:
        evaluations = evaluations_left(loop.config, state.step, loop.total_steps, per_epoch)
    held_out = getattr(getattr(loop.data, "report", None), "num_evaluation", 0)
    parts = trainer.strategy.run_parts(trainer)
    training_seconds = parts.seconds_left(state.step, left, costs.step_seconds)
    value_bytes = 4 if trainer.strategy.precision.name == "fp32" else 2
    growth_bytes = parts.growth_bytes(state.step, costs.heaviest_units, value_bytes)
    seconds = training_seconds + measure_seconds
    seconds += evaluations * held_out * costs.evaluation_seconds
    seconds += sum(extension.seconds_beside_steps() for extension in trainer.hooks.extensions)
    is_alone_on_cpu = trainer.device.type == "cpu" and trainer.placement.size == 1
    version = bytes_of_version(state.model, trainer.create_optimizer)
    num_saves = saves_of(loop.config, loop.total_steps, per_epoch, seconds)
    saved_already = num_saves * state.step // max(1, loop.total_steps)
    seconds += (num_saves - saved_already) * (SAVE_SECONDS + version * SAVE_SECONDS_PER_BYTE)
    final = bytes_of_model(state.model, is_lora=bool(trainer.adapter.describe().get("lora")))
    other_bytes, passing_bytes = parts.disk_bytes()
    return Forecast(
        num_steps=left,
        step_seconds=training_seconds / max(1, left),
        seconds=seconds,
        peak_memory_bytes=costs.peak_bytes + growth_bytes,
        memory_bytes=costs.limit_bytes,
        **space_of(
            config,
            folder,
            num_steps=loop.total_steps,
            num_saves=num_saves,
            version_bytes=version,
            final_bytes=final,
            other_bytes=other_bytes,
            passing_bytes=passing_bytes,
        ),
        session_seconds=config.training.deadline,
        measure_seconds=measure_seconds,
        num_processes=trainer.placement.size,
        price_per_hour=config.price_per_hour,
        others_share=others.share() if is_alone_on_cpu else None,
    )


class PeakObserver(Observer):
    """An observer of the highest memory use during training."""

    def __init__(self) -> None:
        self.highest_bytes = 0
        self._peak: PeakMemory | None = None

    def train_start(self, state: TrainingState) -> None:
        self._peak = PeakMemory(next(state.model.parameters()).device)
        self._peak.start()

    def phase_end(self, state: TrainingState) -> None:
        """Record the peak memory. This happens here because a Trainer writes its summary before
        `train_end`.
        """
        if self._peak is not None:
            self.highest_bytes = self._peak.read()

    def train_end(self, state: TrainingState) -> None:
        self.phase_end(state)
        if self._peak is not None:
            self._peak.close()


def costs_of(trainer: EnhancedTrainer) -> StepCosts:
    """Measure the time and the memory that a step takes in this process.

    On a CPU, several processes share the cores and the memory of one machine, so they are not
    faster than one process.

    Raises:
        DoesNotFitError: if not even weights, gradients and optimizer fit in memory.
    """
    loop, placement = trainer.prepare().loop, trainer.placement
    count = placement.size
    plan = trainer.batch_plan().of_one_process(count)
    has_optimizer = bool(
        loop.optimizer_step.optimizer.state
    )  # of the checkpoint that it resumes from
    if placement.sharding is not None:
        return spread_costs(
            trainer.cost_measurement(),
            trainer.batch_plan(),
            count,
            offload=placement.sharding is Sharding.OFFLOAD,
        )
    costs = trainer.cost_measurement().costs(plan, loop.total_steps, has_optimizer)
    if trainer.device.type != "cpu" or count == 1:
        return costs
    return replace(
        costs,
        step_seconds=costs.step_seconds * count,
        limit_bytes=trainer.memory_budget.limit_bytes(trainer.device, count),
    )


def due_steps(every: int | None, epochs: int | None, per_epoch: int, end: int) -> set[int]:
    """Return the steps at which something is due: every `every` steps, every `epochs` epochs, and
    at the end.
    """
    periods = [every, epochs and epochs * per_epoch]
    return {end, *(step for period in periods if period for step in range(period, end, period))}


def evaluations_left(training: TrainingConfig, step: int, end: int, per_epoch: int) -> int:
    """Return how often the held-out rows are evaluated after `step`, and until the step `end`."""
    every, epochs = training.validation_frequency, training.validation_interval
    return sum(due > step for due in due_steps(every, epochs, per_epoch, end))


def saves_of(training: TrainingConfig, end: int, per_epoch: int, seconds: float) -> int:
    """Estimate how many checkpoints a run of `end` steps saves: by steps, by time, and at the end.

    Args:
        seconds: the remaining time of the run, for the checkpoints by time.
    """
    every, epochs = training.checkpoint_frequency, training.checkpoint_interval
    by_clock = int(seconds // USUAL_SAVE_SECONDS) if training.checkpoint_seconds else 0
    return len(due_steps(every, epochs, per_epoch, end)) + by_clock


def bytes_of_model(model: torch.nn.Module, *, is_lora: bool) -> int:
    """Return the size of `final/`: the weights of a LoRA, or of the whole model."""
    weights = (p for p in model.parameters() if p.requires_grad or not is_lora)
    return sum(p.numel() * p.element_size() for p in weights)


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in paths_below(folder):
        with suppress(FileNotFoundError):  # a copier is still cleaning up
            total += path.lstat().st_size if path.is_file() else 0
    return total


def bytes_of_version(model: torch.nn.Module, create_optimizer: CreateOptimizer) -> int:
    """Estimate the size of a checkpoint of a run that has no checkpoint yet.

    Args:
        create_optimizer: creates the run's optimizer for a module.
    """
    return bytes_of_first_version(model) + optimizer_state_bytes(create_optimizer, model)


def bytes_of_first_version(model: torch.nn.Module) -> int:
    """Estimate the size of a checkpoint before the first step, which has no optimizer state."""
    weights = sum(t.numel() * t.element_size() for t in trainable_state(model).values())
    return weights + SMALL_BYTES


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
    writes = training.installed.method.generates
    limit_bytes = MemoryBudget.of(config).limit_bytes(training.device)
    others = OtherPrograms()
    costs = StepProbe(trainer, writes, limit_bytes).costs(left)
    per_epoch = steps_per_epoch(trainer, trainer.callback_handler.train_dataloader)
    seconds = left * (costs.step_seconds + LOOP_SECONDS)
    evaluations = evaluations_left(config.training, done, total, per_epoch)
    evaluations += bool(trainer.args.eval_on_start)
    seconds += evaluations * costs.evaluation_seconds if training.data.held_out else 0.0
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
            num_saves=1 + saves_of(config.training, total, per_epoch, seconds),  # one at the start
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
