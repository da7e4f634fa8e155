"""The records that a run writes about itself: run.json at its start, summary.json at its end."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.files import whole_directory
from infrastructure.core.messages import phrase
from infrastructure.data.data_pipeline import DataPipeline, first_examples
from infrastructure.data.defaults import num_positions
from infrastructure.data.encoding.token_preview import token_preview
from infrastructure.data.readers.sources import data_files_hash
from infrastructure.evaluation.held_out import HeldOut
from infrastructure.evaluation.run_settings import run_folder
from infrastructure.models.lora import count_parameters
from infrastructure.models.token_functions import CROSS_ENTROPY
from infrastructure.monitoring.drawing.metrics_file import spell_numbers
from infrastructure.monitoring.records.run_list import finished_model
from infrastructure.monitoring.records.run_reader import model_words
from infrastructure.run.directory import RunDirectory
from infrastructure.run.finalize import summary_of
from infrastructure.run.record import base_record
from infrastructure.run.record_types import (
    ExampleRecord,
    RunRecord,
    Summary,
)
from infrastructure.run.trained_rows import Contents, record_trained_rows, trained_rows
from infrastructure.training.core.product_choice import ProductChoice
from infrastructure.training.core.state import TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.resume.fingerprint import installed_versions
from infrastructure.training.setup.compute_choice import ComputeChoice
from infrastructure.training.setup.resource_limits import memory_facts
from infrastructure.training.sizing.compile_benchmark import CompileBenchmark

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
    device, num_processes = str(trainer.device), trainer.num_processes
    record: RunRecord = {
        **base_record(run, settings, installed_versions(), device, num_processes),
        "configuration": config.to_dict(),
        "decided": decided,
        "precision": trainer.precision.name,
        "num_threads": trainer.num_threads,
        "attention": trainer.attention_form(),
        "last_mlp": trainer.last_mlp_form(),
        "model": trainer.adapter.describe(),
        "data": describe_data(config, trainer),
    }
    write_record(run.run_file, record)
    if report is not None:
        report.quarantine.write(run.quarantine_file)
    record_rows(run, trainer, config)
    save_tokenizer(run, trainer)


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
        **(_as_read(data, report, config) if report else {}),
    }


def _as_read(data: Any, report: Any, config: DeploymentConfig) -> dict[str, object]:
    lines = report.lines(num_positions=num_positions(config, may_fetch=False))
    examples = first_examples(data, NUM_PREVIEWED)
    preview = [
        token_preview(shown.example, data.tokenizer, left_out=shown.left_out) for shown in examples
    ]
    facts = {name: fact for name, fact in report.to_dict().items() if name != "losses"}
    return {**facts, "lines": lines, "preview": preview}


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
    assert state is not None
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
        "num_processes": trainer.num_processes,
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
    count = trainer.num_processes
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
    if count <= trainer.num_processes:
        return []
    used = trainer.num_processes
    return [phrase("deployment.unused_gpus", count=count, used=used)]
