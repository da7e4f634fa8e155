"""The files of a run as a training writes them, for whoever shows runs."""

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from infrastructure.monitoring.drawing.metrics_file import encode_record

RUN = {
    "created": "2026-11-20T23:45:12+0000",
    "command": "temper train chats.jsonl --model ./my-llama",
    "config": {
        "data.path": {"value": "chats.jsonl", "source": "argument DATA"},
        "training.seed": {"value": 0, "source": "default"},
    },
    "model": {"name": "my-llama", "num_parameters": 3_000_000, "num_trainable": 1_500_000},
}
GPU = {
    **{"index": 0, "name": "Tesla T4", "utilization_percent": 97.0, "power_watts": 65.0},
    **{"memory_used_bytes": 14 * 2**30, "memory_total_bytes": 15 * 2**30},
    "temperature_celsius": 71.0,
}


def write_run(folder: Path, name: str = "20260101-a", **summary: Any) -> Path:
    """A run of 40 steps that this process trains, with a summary that says so."""
    run = folder / name
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"run_id": name, **RUN}))
    (run / "trained_by").write_text(f"process {os.getpid()} on {os.uname().nodename}\n")
    content = {"status": "running", "total_steps": 40, **summary}
    (run / "summary.json").write_text(json.dumps(content))
    return run


def step_record(step: int, loss: float = 2.0, seconds: float = 0.5) -> dict[str, Any]:
    position = {"step": step, "epoch": 0, "tokens": 100.0 * step, "seconds": seconds}
    numbers = {"learning_rate": 1e-3, "grad_norm": 1.0, "tokens_per_second": 200.0}
    return {**position, **numbers, "loss": loss, "memory_bytes": 3.0e8}


def falling(first: int, last: int) -> list[dict[str, Any]]:
    """Records of the steps first … last with a falling loss."""
    return [step_record(step, 3 * math.exp(-step / 20) + 0.4) for step in range(first, last + 1)]


def evaluation(step: int, loss: float) -> dict[str, Any]:
    return {"step": step, "epoch": 0, "kind": "evaluation", "eval_loss": loss}


def sample(seconds_ago: float, step: int = 1, **more: Any) -> dict[str, Any]:
    """One reading of the machine, as the monitor writes it."""
    return {
        **{"time": time.time() - seconds_ago, "step": step, "cpu_percent": 50.0},
        **{"memory_used_bytes": 6 * 2**30, "memory_total_bytes": 8 * 2**30},
        **{"process_memory_bytes": 2 * 2**30, "disk_read_bytes_per_second": 3e6},
        **{"disk_write_bytes_per_second": None, "gpus": [GPU], **more},
    }


def add(run: Path, *records: dict[str, Any], file: str = "metrics.jsonl") -> None:
    """Append records as a training does: whole lines at the end of the file."""
    path = run / file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as lines:
        lines.write(b"".join(map(encode_record, records)))


def points_by_key(records: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Key → (step, value) of every record that has a number under it."""
    points: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        for key, value in record.items():
            if isinstance(value, int | float):
                points.setdefault(key, []).append((record["step"], value))
    return points


def system_file(kind: str) -> str:
    return f"logs/system/{kind}.jsonl"


def a_training(folder: Path, **summary: Any) -> Path:
    """A run at step 30 of 40, with a held-out loss, a sample, an alert and an error."""
    directory = write_run(folder, **summary)
    add(directory, *falling(1, 30), evaluation(30, 1.25))
    add(directory, sample(0, step=30), file=system_file("system"))
    alert = {"time": time.time(), "step": 29, "rule": "gpu_memory", "message": "93% is above 90%"}
    add(directory, alert, file=system_file("alerts"))
    error = {"step": 12, "kind": "spike", "action": "went back to step 10", "message": "loss 9"}
    add(directory, error, file="logs/errors/errors.jsonl")
    return directory
