"""Settings of the run that trained a model, with which an evaluation tokenizes rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.core.json_text import JsonObject, as_object, json_of
from infrastructure.core.messages import Setting, phrase
from infrastructure.core.optional import is_installed
from infrastructure.data.preparation.plan import first_rows
from infrastructure.monitoring.records.run_list import RUN_FILE
from infrastructure.run.directory import RunDirectory
from infrastructure.run.finalize import read_summary

# These decide how rows become tokens: different values would measure a different task.
INHERITED = ("max_length", "train_on", "chat_template", "over_length", "image_background")
# These name the columns that rows are made of; other data may have other columns.
COLUMNS = (
    *("shape", "prompt_column", "answer_column", "context_column", "text_column"),
    *("image_column", "task_column"),
)


def inherit_from_runs(configs: Sequence[DeploymentConfig]) -> list[str]:
    """Apply the data settings of each model's run, unless the user set them.

    A model without a run gets the settings of the other model's run, because that run may have
    started from this model.

    Returns:
        A note for each value that differs from the default.
    """
    own = [inherit_from_run(config) for config in configs]
    for config, other in zip(configs, reversed(configs), strict=True):
        mine, theirs = (data_of_run(Path(each.model.name)) for each in (config, other))
        if mine is None and theirs is not None:
            _take(config, {f"data.{name}": getattr(other.data, name) for name in INHERITED})
    taken = [
        phrase("evaluation.setting_from_run", key=Setting(key), value=value)
        for each in own
        for key, value in each.items()
    ]
    return [*dict.fromkeys(taken)]


def inherit_from_run(config: DeploymentConfig) -> dict[str, object]:
    """Apply the data settings of the model's run unless the user set them; return the changes."""
    saved = data_of_run(Path(config.model.name))
    if saved is None:
        return {}
    names = (*INHERITED, *COLUMNS) if _has_columns(config, saved) else INHERITED
    return _take(config, {f"data.{name}": getattr(saved, name) for name in names})


def _has_columns(config: DeploymentConfig, saved: DataConfig) -> bool:
    """Return whether the evaluated data has the columns that the run's settings name."""
    named = {name: getattr(saved, name) for name in COLUMNS}
    if all(named[name] == getattr(DataConfig(), name) for name in COLUMNS):
        return False
    if any(config.source(f"data.{name}").layer is not Layer.DEFAULT for name in COLUMNS):
        return False
    try:
        first_rows(config.data.model_copy(update=named))
    except (ValueError, OSError):
        return False
    return True


def _take(config: DeploymentConfig, values: Mapping[str, object]) -> dict[str, object]:
    taken = {
        key: value
        for key, value in values.items()
        if config.source(key).layer is Layer.DEFAULT and value != config.value(key)
    }
    for key, value in taken.items():
        setattr(config.data, key.removeprefix("data."), value)
    return taken


def data_of_run(model: Path) -> DataConfig | None:
    """Return the data settings of the model's run; None if there is no readable run."""
    try:
        configuration = as_object(record_of_run(model)["configuration"])
        recorded: dict[str, Any] = as_object(as_object(configuration["values"])["data"])
        names = [name for name in (*INHERITED, *COLUMNS) if name in recorded]
        return DataConfig(**{name: recorded[name] for name in names})
    except (KeyError, TypeError, ValueError):
        return None  # not a run of Temper, or an unreadable one: the model itself can still be used


def record_of_run(model: Path) -> JsonObject:
    """Return the content of run.json of the model's run; {} without a readable run."""
    folder = run_folder(model)
    return {} if folder is None else json_of(folder / RUN_FILE)


def run_folder(model: Path) -> Path | None:
    """Return the folder of the run that a model belongs to; None if it belongs to no run."""
    if not model.is_dir():
        return None
    return next((path for path in (model, model.parent) if (path / RUN_FILE).is_file()), None)


def precision_of_run(model: Path) -> str | None:
    """Return the dtype that the model's run computed in; None without a run."""
    precision = record_of_run(model).get("precision")
    return precision if isinstance(precision, str) else None


def quantization_of_run(model: Path) -> str | None:
    """Return how the base model was quantized in the run that trained a LoRA.

    None if it was not quantized, if there is no run, or if bitsandbytes is not installed.
    """
    described = record_of_run(model).get("model")
    if not isinstance(described, dict) or not described.get("lora"):
        return None
    kind = described.get("quantization")
    return kind if isinstance(kind, str) and is_installed("bitsandbytes") else None


def background_of_run(model: Path) -> str:
    """Return the color behind transparent pixels used in training, or the default."""
    return (data_of_run(model) or DataConfig()).image_background


def has_context(model: Path) -> bool:
    """Return whether the rows of the model's run have a context column."""
    folder = run_folder(model)
    return folder is not None and read_summary(RunDirectory(folder)).get("has_context", False)
