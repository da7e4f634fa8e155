"""The end of a run that finished, stopped or failed: its summary, its report, its cleanup."""

import gc
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.agent import left_to_agent
from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.console import Count, Report
from infrastructure.core.errors import CheckpointError
from infrastructure.core.files import whole_directory
from infrastructure.core.messages import phrase
from infrastructure.core.notebook import in_notebook_kernel
from infrastructure.data.data_pipeline import DataPipeline, first_examples
from infrastructure.data.encoding.token_preview import token_preview
from infrastructure.data.readers.sources import data_files_hash
from infrastructure.deployment.forecast import RunForecast
from infrastructure.evaluation.held_out import HeldOut, measure, trained_model
from infrastructure.evaluation.plain_reading import check_saved
from infrastructure.evaluation.run_settings import run_folder
from infrastructure.models.lora import count_parameters
from infrastructure.models.model_path import EMBEDDED
from infrastructure.models.token_functions import CROSS_ENTROPY
from infrastructure.monitoring.drawing.formatting import format_duration
from infrastructure.monitoring.drawing.metrics_file import spell_numbers
from infrastructure.monitoring.records.run_list import finished_model
from infrastructure.monitoring.records.run_reader import model_words
from infrastructure.run.advice import advice_at_end
from infrastructure.run.cost import cost_of
from infrastructure.run.directory import RunDirectory
from infrastructure.run.finalize import (
    read_summary,
    seal,
    summary_of,
    write_report_of,
    write_summary,
)
from infrastructure.run.record import base_record
from infrastructure.run.record_types import (
    ExampleRecord,
    RunRecord,
    Summary,
)
from infrastructure.run.replication import RunReplication
from infrastructure.run.summary_text import closing_lines, cost_lines
from infrastructure.run.timings import Stages
from infrastructure.run.trained_rows import Contents, record_trained_rows, trained_rows
from infrastructure.training.checkpoints.checkpoint_manager import take_best
from infrastructure.training.core.product_choice import ProductChoice
from infrastructure.training.core.state import StopReason, TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter
from infrastructure.training.resume.fingerprint import counted_threads, installed_versions
from infrastructure.training.setup.compute_choice import ComputeChoice
from infrastructure.training.setup.resource_limits import memory_facts
from infrastructure.training.sizing.compile_benchmark import CompileBenchmark


@dataclass
class RunFinalizer:
    """The actions at the end of a run: save, evaluate, wait for backups, report.

    Args:
        before: the evaluation from before the first step.
        patience: how long the end of the run waits for its backups.
        report: a function that shows a line to the user.
        price_per_hour: the price of this machine per hour, or None if not given.
        is_result_shown: whether another display shows the result.
    """

    run: RunDirectory
    trainer: EnhancedTrainer
    before: HeldOut
    copies: RunReplication
    forecast: RunForecast
    stages: Stages
    patience: BackupConfig
    report: Report
    price_per_hour: str | None = None
    is_result_shown: bool = False
    started: float = field(default_factory=time.monotonic)
    _seconds: float | None = None
    _summary: Summary | None = None
    _final_step: int | None = None
    _last_lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._seconds_before = read_summary(self.run).get("cost", {}).get("seconds", 0.0)

    def finish(self) -> Summary:
        """Save the trained model, evaluate it, and wait for its backups."""
        with self.stages.stage("save"):
            self._final_step = self._take_best()
            self.trainer.adapter.save(self.run.final)
            self._read_back()
            for problem in self.trainer.strategy.run_parts(self.trainer).save(self.run.path):
                self.report(f"note: {problem}")
        self.report(phrase("deployment.evaluating_trained_model"))
        count = Count(phrase("deployment.evaluating_trained_model_bar"), "answers")
        with self.stages.stage("evaluate"), self.report.waiting(count.words):
            after = measure(self.trainer, count)
        summary = self._close(after)
        if self.copies.has_place:
            with self.stages.stage("back up"):
                self.copies.complete(self.patience.finish_seconds, lambda: self._close(after))
            summary = self._close(after)
        self._last_lines = closing_lines(self.run.path, summary, self.is_result_shown)
        if (unsafe := self.copies.problem()) is not None:
            self._last_lines.append(unsafe)
        return summary

    def _take_best(self) -> int | None:
        """If so configured, load the best weights. Return their step; None for the last step."""
        trainer, state = self.trainer, self.trainer.state
        if trainer.adapter.on_disk or not trainer.training_config.ends_with_best:
            return None
        step = take_best(trainer.initialize_model(), self.run.checkpoints, state.step)
        return None if step == state.step else step

    def _read_back(self) -> None:
        """Verify that the saved model, loaded by plain transformers, answers like the trained
        model.

        Raises:
            CheckpointError: if it does not. The saved model is then removed; the last checkpoint
                has the trained weights.
        """
        trained = trained_model(self.trainer)
        if trained is None:
            return
        try:
            for note in check_saved(self.run.final, trained):
                self.report(note)
        except CheckpointError:
            shutil.rmtree(self.run.final)
            raise

    def stopped(self, error: BaseException | None = None) -> Summary:
        """End an unfinished run. Report why it stopped, how to resume, and what is saved."""
        summary = self._close(error=error)
        if self.copies.has_place:
            reason, patience = self.trainer.state.stop_reason, self.patience.emergency_seconds
            with self.stages.stage("back up"):
                self.copies.wait(self.trainer.schedule.seconds_to_copy(reason, patience))
            summary = self._close(error=error)
        self._last_lines = [
            phrase(
                "deployment.stopped_at_step",
                step=summary["steps"],
                reason=summary["reason"],
                run=self.run.path,
                backup=self.copies.line(),
            ),
            *self._deadline_lines(),
            *cost_lines(summary),
        ]
        return summary

    def _deadline_lines(self) -> list[str]:
        """Return a note that `training.deadline` will apply again when the run resumes.

        In a notebook, there is no note, because the deadline comes from the runtime.
        """
        state, seconds = self.trainer.state, self.trainer.training_config.deadline
        is_stopped = state.stop_reason is StopReason.DEADLINE
        if not is_stopped or seconds is None or in_notebook_kernel():
            return []
        return [phrase("deployment.deadline_applies_again", duration=format_duration(seconds))]

    def failed(self, error: BaseException) -> None:
        """Record the error that ended the run, and its details."""
        self._close(error=error)

    def clean_up(self) -> None:
        """Stop the helper processes and free the GPU's memory, however the run ended."""
        with self.stages.stage("clean up"):
            self.copies.close()
            gc.collect()
            if self.trainer.device.type == "cuda":
                torch.cuda.empty_cache()
        if self._summary is None:
            return
        self._summary["stages"] = self.stages.records()
        seal(self.run, self._summary)

    def show_end(self) -> None:
        """Show how the run ended. This is the last action of a run."""
        if self._summary and left_to_agent(self._last_lines, self._summary["signal"]):
            return
        for line in self._last_lines:
            self.report(line)

    def _cost(self) -> Summary:
        """Return the cost of the run so far, if a price is known."""
        return cost_of(self.price_per_hour, self._seconds_before + self.stages.total_seconds())

    def _advice(self, after: HeldOut | None) -> Summary:
        """Return advice that follows from the final metrics; empty if the run was not finished."""
        if after is None:
            return {}
        state = self.trainer.state
        model = self.trainer.model_config
        advice = advice_at_end(
            self.run,
            self.trainer.training_config.best_metric,
            self._final_step or state.step,
            state.position.epoch,
            self.before.table_row(),
            after.table_row(),
            best_is_greater=state.best_is_greater,
            is_cut_short=self.trainer.training_config.max_steps == state.step,
            freezes_new_weights=model.name == EMBEDDED and model.lora_config is not None,
        )
        return {"advice": advice} if advice else {}

    def _stop_the_clock(self) -> float:
        """Return the seconds that training took. The first call stops the clock."""
        self._seconds = self._seconds or time.monotonic() - self.started
        return self._seconds

    def _close(self, after: HeldOut | None = None, error: BaseException | None = None) -> Summary:
        """Write summary.json and the report, and return the summary."""
        seconds = self._stop_the_clock()
        self._summary = {
            **summarise(self.run, self.trainer, seconds, self.before, after, error),
            **({} if self._final_step is None else {"final_step": self._final_step}),
            **self._advice(after),
            "forecast": self.forecast.compared(seconds) if after is not None else [],
            **self._cost(),
            "backup": self.copies.facts(),
            "stages": self.stages.records(),
        }
        write_summary(self.run, self._summary)
        write_report_of(self.run)
        return self._summary


NUM_PREVIEWED = 2
COMPILE_MODE = "training.compile_mode"


def record_run(
    run: RunDirectory,
    config: DeploymentConfig,
    trainer: EnhancedTrainer,
    measured: Iterable[ProductChoice | ComputeChoice] = (),
) -> None:
    """Write run.json, the tokenizer and the skipped rows, before the first step.

    Args:
        measured: the choices that were made by measurement, such as the attention implementation.
    """
    data = trainer.initialize_data()
    report = getattr(data, "report", None)
    decided = trainer.batch_plan().decided()
    for choice in measured:
        decided |= choice.decided()
    settings = {key: (config.value(key), src.place) for key, src in config.sources().items()}
    device, num_processes = str(trainer.device), trainer.placement.size
    record: RunRecord = {
        **base_record(run, settings, installed_versions(), device, num_processes),
        "configuration": config.to_dict(),
        "decided": decided,
        "precision": trainer.precision.name,
        "num_threads": counted_threads(trainer.device, num_processes),
        "attention": trainer.adapter.attention_form(trainer.initialize_model()),
        "last_mlp": last_mlp_form(trainer),
        "model": trainer.adapter.describe(),
        "data": describe_data(config, trainer),
    }
    write_record(run.run_file, record)
    if report is not None:
        report.quarantine.write(run.quarantine_file)
    record_rows(run, trainer, config)
    save_tokenizer(run, trainer)


def last_mlp_form(trainer: EnhancedTrainer) -> str:
    """Return the tokens for which the last layer's MLP is computed: all, or only trained ones."""
    narrows = (
        isinstance(trainer.adapter, StandardModelAdapter)
        and trainer.placement.sharding is None
        and trainer.adapter.token_loss.last_mlp(trainer.initialize_model()) is not None
    )
    return "learnt tokens" if narrows else "all tokens"


def record_rows(run: RunDirectory, trainer: EnhancedTrainer, config: DeploymentConfig) -> None:
    """Record which rows are trained on from now on, if the data is in files."""
    data = trainer.initialize_data()
    contents = data.contents(held_out=False) if isinstance(data, DataPipeline) else None
    if contents is not None:
        record_rows_of(run, config, contents)


def record_rows_of(run: RunDirectory, config: DeploymentConfig, contents: Contents) -> None:
    """Record the hashes of the rows that the model was trained on.

    If another run trained the base model, its rows are included.
    """
    first = run_folder(Path(finished_model(config.model.name)).expanduser())
    earlier = None if first is None else trained_rows(RunDirectory(first))
    record_trained_rows(run, contents, earlier)


class CompilingObserver(Observer):
    """An observer that records in run.json whether the model is compiled.

    `CompileBenchmark`, which is called before this observer, decides by measurement whether to
    compile.
    """

    def __init__(self, run: RunDirectory, benchmark: CompileBenchmark) -> None:
        self.run, self.benchmark = run, benchmark

    def train_start(self, state: TrainingState) -> None:
        decision = self.benchmark.decision
        if decision is not None and self.run.has_record():
            record = read_record(self.run.run_file)
            value = "default" if decision.pays else "none"
            earlier = record.get("decided")
            record["decided"] = {
                **(earlier if isinstance(earlier, dict) else {}),
                COMPILE_MODE: {"value": value, "origin": str(decision)},
            }
            write_record(self.run.run_file, record)


def save_tokenizer(run: RunDirectory, trainer: EnhancedTrainer) -> None:
    """Write the tokenizer with which the run resumes, if the model reads text.

    All files are on the disk when this function returns.
    """
    tokenizer = trainer.adapter.tokenizer
    if tokenizer is not None:
        with whole_directory(run.tokenizer) as part:
            tokenizer.save_pretrained(part)


def describe_data(config: DeploymentConfig, trainer: EnhancedTrainer) -> dict[str, object]:
    """Return the entry of run.json about the training data."""
    data = trainer.initialize_data()
    report = getattr(data, "report", None)
    return {
        "fingerprint": data.fingerprint,
        "num_examples": data.num_examples,
        "files_sha256": data_files_hash(config.data),
        **(_as_read(data, report) if report else {}),
    }


def _as_read(data: Any, report: Any) -> dict[str, object]:
    examples = first_examples(data, NUM_PREVIEWED)
    preview = [
        token_preview(shown.example, data.tokenizer, left_out=shown.left_out) for shown in examples
    ]
    facts = {name: fact for name, fact in report.to_dict().items() if name != "losses"}
    return {**facts, "lines": report.lines(), "preview": preview}


def summarise(
    run: RunDirectory,
    trainer: EnhancedTrainer,
    seconds: float,
    before: HeldOut,
    after: HeldOut | None = None,
    error: BaseException | None = None,
) -> Summary:
    """Return the content of summary.json: outcome, metrics before and after training, and paths."""
    state = trainer.state
    example: ExampleRecord = {
        "prompt": before.example.get("prompt"),
        "expected": before.example.get("expected"),
        "before": before.example.get("written"),
    }
    if after is not None:
        example["after"] = after.example.get("written")
    summary: Summary = {
        **summary_of(run, state, seconds, is_finished=after is not None, error=error),
        "epochs": state.position.epoch,
        "num_processes": trainer.placement.size,
        "memory": memory_facts(trainer),
        "before": before.table_row(),
        "after": None if after is None else after.table_row(),
        "example": example if before.example else None,
        "num_questions": 0 if after is None else after.num_questions,
        "validation_prompts": trainer.training_config.validation_prompts,
    }
    if memory := summary["memory"]:
        seen = [summary["peak_memory_bytes"], memory.get("highest_bytes")]
        known = [float(each) for each in seen if isinstance(each, int | float)]
        summary["peak_memory_bytes"] = max(known, default=None)
    report = getattr(trainer.initialize_data(), "report", None)
    if report is not None:
        summary["num_held_out"] = report.num_evaluation
    if report is not None and report.system_prompt is not None:
        summary["system_prompt"] = report.system_prompt
    if report is not None and report.has_context:
        summary["has_context"] = True
    if trainer.training_config.loss != CROSS_ENTROPY:
        summary["loss_function"] = trainer.training_config.loss
    return cast(Summary, spell_numbers(summary))


def describe_model(trainer: EnhancedTrainer) -> str:
    """Return one line about the model that will be trained."""
    model: torch.nn.Module = trainer.initialize_model()
    described = trainer.adapter.describe()
    total, trained = count_parameters(model)
    model_config = trainer.model_config
    if model_config.lora_config is not None:
        how = "deployment.trains_qlora" if model_config.quantization else "deployment.trains_lora"
    else:
        how = "deployment.trains_all" if trained == total else "deployment.trains_part"
    count = trainer.placement.size
    return phrase(
        "deployment.model_line",
        model=model_words(str(described["name"])),
        millions=total / 1e6,
        trained=trainer.strategy.run_parts(trainer).trained()
        or phrase(how, millions=trained / 1e6),
        precision=trainer.precision.name,
        device=trainer.device,
        processes=f", {count} processes" if count > 1 else "",
    )


def unused_gpus(trainer: EnhancedTrainer) -> list[str]:
    """Return a note if the machine has more GPUs than the run uses; otherwise an empty list."""
    count = torch.cuda.device_count() if trainer.device.type == "cuda" else 0
    if count <= trainer.placement.size:
        return []
    used = trainer.placement.size
    return [phrase("deployment.unused_gpus", count=count, used=used)]
