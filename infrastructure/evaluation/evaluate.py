"""Measure a saved model on data: what `temper train-eval MODEL DATA` does."""

import json
import time
from pathlib import Path
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.layers import Layer
from infrastructure.core.files import write_json
from infrastructure.evaluation.held_out import HeldOut, measure
from infrastructure.monitoring.tables import render_table
from infrastructure.training.trainer_factory import TrainerFactory

# How rows became tokens in the run that made the model; other rules would measure something else.
INHERITED_KEYS = ("data.max_length", "data.train_on", "data.chat_template", "data.over_length")


def evaluate_model(config: DeploymentConfig) -> list[str]:
    """Measure `config.model.name` on `config.data.path` and write the numbers down.

    A LoRA folder is measured on its base. Where the model lies in a run, the run's way of making
    tokens is used, unless the configuration says otherwise.

    Returns:
        Lines to show.

    Raises:
        ValueError, TemperError: the model or the data cannot be used.
    """
    inherited = inherit_from_run(config)
    config.data.eval_path = config.data.path
    config.model.lora_config = None
    trainer = TrainerFactory().for_run(config)
    held_out = measure(trainer)
    path = _write(config, held_out)
    rows = [[name, f"{value:.4f}"] for name, value in held_out.metrics.items()]
    rows += [
        [f"exact match {task}".replace(" all", ""), f"{100 * share:.1f} %"]
        for task, share in held_out.exact_match.items()
    ]
    title = f"{config.model.name} on {config.data.path}"
    notes = [f"{key} as in the run: {value}" for key, value in inherited.items()]
    table = render_table([title, ""], rows)
    return [*notes, table, f"({held_out.num_questions} prompts answered)", f"written to {path}"]


def inherit_from_run(config: DeploymentConfig) -> dict[str, Any]:
    """Take the data settings of the run that the model lies in, where nobody gave others."""
    folder = Path(config.model.name)
    found = [path for path in (folder / "run.json", folder.parent / "run.json") if path.is_file()]
    if not folder.is_dir() or not found:
        return {}
    try:
        saved = DeploymentConfig.from_dict(json.loads(found[0].read_text())["configuration"])
    except (KeyError, ValueError):
        return {}  # not a run of ours, or an unreadable one: the model itself is still whole
    inherited = {}
    for key in INHERITED_KEYS:
        if config.source(key).layer is Layer.DEFAULT and saved.value(key) != config.value(key):
            setattr(config.data, key.removeprefix("data."), saved.value(key))
            inherited[key] = saved.value(key)
    return inherited


def _write(config: DeploymentConfig, held_out: HeldOut) -> Path:
    folder = Path(config.output_dir) / "evaluations"
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(config.model.name).name}.json"
    numbers = {"model": config.model.name, "data": config.data.path, **held_out.to_dict()}
    write_json(path, numbers)
    return path
