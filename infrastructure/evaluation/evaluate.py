"""Measure a saved model on data: what `temper train-eval MODEL DATA` does."""

import time
from pathlib import Path
from typing import Any

from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import EmbeddedModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.files import write_json
from infrastructure.core.json_text import JsonObject, as_object, parse_json
from infrastructure.evaluation.held_out import HeldOut, measure
from infrastructure.monitoring.drawing.tables import render_table
from infrastructure.monitoring.records.run_list import finished_model
from infrastructure.training.data.readers.sources import data_files_hash, discover, held_out_beside
from infrastructure.training.trainer_factory import TrainerFactory

# How rows became tokens in the run that made the model; other rules would measure something else.
INHERITED = ("max_length", "train_on", "chat_template", "over_length")
# Fields and sections that only a training has a use for.
UNUSED = {
    "data.eval_path": "the model is measured on DATA",
    "data.validation_split": "nothing is held out of DATA",
    "model.lora_config": "MODEL brings its own LoRA",
    "model.embedded": "MODEL has its shape",
}


def evaluate_model(config: DeploymentConfig) -> list[str]:
    """As `measure_model`, in lines to show."""
    _, lines = measure_model(config)
    return lines


def measure_model(config: DeploymentConfig) -> tuple[HeldOut, list[str]]:
    """Measure `config.model.name` on `config.data.path` and write the numbers down.

    A LoRA folder is measured on its base. Where the model lies in a run, the run's way of making
    tokens is used, unless the configuration says otherwise.

    Returns:
        The numbers, and lines to show.

    Raises:
        ValueError, TemperError: the model or the data cannot be used.
    """
    config.model.name = finished_model(config.model.name)
    inherited = inherit_from_run(config)
    notes = [*trained_on(config), *set_aside(config)]
    config.data.eval_path = config.data.path
    trainer = TrainerFactory().for_run(config, "transformers")
    held_out = measure(trainer)
    path = _write(config, held_out)
    rows = [[name, f"{value:.4f}"] for name, value in held_out.metrics.items()]
    rows += [
        [f"exact match {task}".replace(" all", ""), f"{100 * share:.1f} %"]
        for task, share in held_out.exact_match.items()
    ]
    title = f"{config.model.name} on {config.data.path}"
    notes += [f"{key} as in the run: {value}" for key, value in inherited.items()]
    table = render_table([title, ""], rows)
    closing = [f"({held_out.num_questions} prompts answered)", f"written to {path}"]
    return held_out, [*notes, table, *closing]


def trained_on(config: DeploymentConfig) -> list[str]:
    """A note where the run that the model lies in was trained on these very rows."""
    run = _record_of_run(Path(config.model.name))
    data = config.data.path
    if run is None or data is None or not Path(data).exists():
        return []
    recorded_data, described = _values(run).get("data"), run.get("data")
    path = recorded_data.get("path") if isinstance(recorded_data, dict) else None
    is_same_file = isinstance(path, str) and Path(path).resolve() == Path(data).resolve()
    recorded = described.get("files_sha256") if isinstance(described, dict) else None
    alone = config.data.model_copy(update={"eval_path": None})
    if not is_same_file and (recorded is None or recorded != data_files_hash(alone)):
        return []
    if held_out_beside(discover(data, config.data.format, encoding=config.data.encoding)):
        return []  # what is measured is the part that was held out
    return [
        f"note: this model was trained on rows of {data}: the numbers say how well it remembers"
        " them, not how well it answers what it has not seen (the run's report has the loss on the"
        " rows that were held out)"
    ]


def set_aside(config: DeploymentConfig) -> list[str]:
    """Forget what a measurement has no use for.

    Returns:
        A note for each such setting of a file or of the environment, which trainings share.

    Raises:
        ConfigurationError: one was given to this very measurement.
    """
    given = [(key, s) for key, s in config.sources().items() if s.layer is not Layer.DEFAULT]
    notes: list[str] = []
    refusals: list[str] = []
    for key, source in given:
        reason = next((r for part, r in UNUSED.items() if f"{key}.".startswith(f"{part}.")), None)
        if reason is not None:
            is_meant = source.layer in (Layer.FLAG, Layer.KEYWORD)
            message = f"{key} ({source.place}) has no effect on a measurement: {reason}"
            (refusals if is_meant else notes).append(message)
    if refusals:
        raise ConfigurationError("; ".join(f"{refusal}; leave it out" for refusal in refusals))
    config.data.eval_path, config.data.validation_split = None, 0
    config.model.lora_config, config.model.embedded = None, EmbeddedModelConfig()
    if config.training.batch_size == "auto":  # of a training; what does not fit here is halved
        config.training.batch_size = TrainingConfig().batch_size
    return notes


def inherit_from_run(config: DeploymentConfig) -> dict[str, object]:
    """Take the data settings of the run that the model lies in, where nobody gave others."""
    run = _record_of_run(Path(config.model.name))
    if run is None:
        return {}
    try:
        recorded = as_object(_values(run)["data"])
        known: dict[str, Any] = {name: recorded[name] for name in INHERITED}
        saved = DataConfig(**known)
    except (KeyError, TypeError, ValueError):
        return {}  # not a run of ours, or an unreadable one: the model itself is still whole
    inherited = {}
    for name in INHERITED:
        key, value = f"data.{name}", getattr(saved, name)
        if config.source(key).layer is Layer.DEFAULT and value != config.value(key):
            setattr(config.data, name, value)
            inherited[key] = value
    return inherited


def _record_of_run(model: Path) -> JsonObject | None:
    """What the run says of itself that a model lies in; None: it is none of ours, or unreadable."""
    records = [path for path in (model / "run.json", model.parent / "run.json") if path.is_file()]
    if not model.is_dir() or not records:
        return None
    try:
        return as_object(parse_json(records[0].read_text()))
    except (OSError, TypeError, ValueError):
        return None


def _values(run: JsonObject) -> JsonObject:
    """The settings that a run has recorded, by section."""
    configuration = run.get("configuration")
    values = configuration.get("values") if isinstance(configuration, dict) else None
    return values if isinstance(values, dict) else {}


def _write(config: DeploymentConfig, held_out: HeldOut) -> Path:
    folder = Path(config.output_dir) / "evaluations"
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(config.model.name).name}.json"
    numbers = {"model": config.model.name, "data": config.data.path, **held_out.to_dict()}
    write_json(path, numbers)
    return path
