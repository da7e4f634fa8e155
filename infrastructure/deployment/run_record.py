"""What a run writes down about itself: run.json at its start, summary.json at its end."""

import shlex
import sys
import time
from dataclasses import asdict
from typing import Any

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.checksums import write_record
from infrastructure.core.files import whole_directory
from infrastructure.core.hardware import detect
from infrastructure.core.redact import redact
from infrastructure.core.stop_signals import StopSignal
from infrastructure.deployment.going_on import data_files_hash
from infrastructure.evaluation.held_out import HeldOut
from infrastructure.monitoring.drawing.metrics_file import spell_numbers
from infrastructure.run.directory import RunDirectory
from infrastructure.run.summary_text import paths_of
from infrastructure.training.data.encoding.token_preview import token_preview_html
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.resume.fingerprint import installed_versions
from infrastructure.training.setup.resource_limits import memory_facts


def record_run(run: RunDirectory, config: DeploymentConfig, trainer: EnhancedTrainer) -> None:
    """Write run.json, the tokenizer and the quarantined rows, before the first step."""
    data = trainer.initialize_data()
    report = getattr(data, "report", None)
    decided = trainer.batch_plan().decided()
    write_record(
        run.run_file,
        {
            "run_id": run.run_id,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": redact(shlex.join(sys.argv)),
            "configuration": config.to_dict(),
            "config": {
                key: {"value": _json_value(config.value(key)), "source": source.place}
                for key, source in config.sources().items()
            },
            "decided": decided,
            "versions": installed_versions(),
            "hardware": {
                **asdict(detect(run.path)),
                "device": str(trainer.device),
                "processes": trainer.num_processes,
            },
            "precision": trainer.precision.name,
            "model": trainer.adapter.describe(),
            "data": {
                "fingerprint": data.fingerprint,
                "num_examples": data.num_examples,
                "files_sha256": data_files_hash(config.data),
                **(_describe_data(data, report) if report else {}),
            },
        },
    )
    if report is not None:
        report.quarantine.write(run.quarantine_file)
    if trainer.adapter.tokenizer is not None:
        save_tokenizer(run, trainer)


def save_tokenizer(run: RunDirectory, trainer: EnhancedTrainer) -> None:
    """Write the tokenizer that the run goes on with, all of it on the disk when this returns."""
    with whole_directory(run.tokenizer) as part:
        trainer.adapter.tokenizer.save_pretrained(part)


def _describe_data(data: Any, report: Any) -> dict[str, Any]:
    first = next(data.evaluation_batches(1), None) or next(data.train_batches(0, 0, 1))
    preview = token_preview_html(first[0], data.tokenizer)
    return {**report.to_dict(), "lines": report.lines(), "preview_html": preview}


def _json_value(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    return value if isinstance(value, int | float | bool | list | dict | None) else str(value)


def summarise(
    run: RunDirectory,
    trainer: EnhancedTrainer,
    seconds: float,
    before: HeldOut,
    after: HeldOut | None = None,
    error: BaseException | None = None,
) -> dict[str, Any]:
    """What summary.json holds: outcome, numbers before and after, an example, and paths."""
    state = trainer.state
    assert state is not None
    interrupted = isinstance(error, KeyboardInterrupt)
    failed = error is not None and not interrupted
    status = "failed" if failed else "finished" if after is not None else "stopped"
    example = {"prompt": before.example.get("prompt"), "expected": before.example.get("expected")}
    written = {"before": before.example.get("written")}
    if after is not None:
        written["after"] = after.example.get("written")
    summary = {
        "status": status,
        "reason": state.stop_message or (str(error) or "interrupted" if interrupted else None),
        "signal": state.stop_signal or (error.name if isinstance(error, StopSignal) else None),
        "error": redact(f"{type(error).__name__}: {error}") if failed else None,
        "steps": state.step,
        "total_steps": state.total_steps,
        "epochs": state.position.epoch,
        "tokens": state.num_tokens,
        "seconds": seconds,
        "loss": state.loss,
        "recoveries": state.recoveries,
        "num_processes": trainer.num_processes,
        "peak_memory_bytes": state.metrics.get("memory_bytes"),
        "memory": memory_facts(trainer),
        "before": before.table_row(),
        "after": None if after is None else after.table_row(),
        "example": {**example, **written} if before.example else None,
        "num_questions": 0 if after is None else after.num_questions,
        "paths": paths_of(run.path),
    }
    return dict(spell_numbers(summary))


def describe_model(trainer: EnhancedTrainer) -> str:
    """One line on the model that is about to train."""
    model: torch.nn.Module = trainer.initialize_model()
    described = trainer.adapter.describe()
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    share = "" if trained == total else f", {trained / 1e6:.2f} M of them trained"
    count = trainer.num_processes
    processes = f", {count} processes" if count > 1 else ""
    return (
        f"Model {described['name']}: {total / 1e6:.2f} M parameters{share},"
        f" {trainer.precision.name} on {trainer.device}{processes}"
    )


def unused_gpus(trainer: EnhancedTrainer) -> list[str]:
    """A line where there are more GPUs than the run uses."""
    count = torch.cuda.device_count() if trainer.device.type == "cuda" else 0
    if count <= trainer.num_processes:
        return []
    used = trainer.num_processes
    return [f"{count} GPUs are here, and this run uses {used}: --num-processes auto takes them all"]
