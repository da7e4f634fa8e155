"""The settings that decide the result of a run, and the comparison of these settings.

All other settings may change when a run resumes, because they affect only where, how fast, how
safely or how visibly the same numbers are computed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import metadata_of
from infrastructure.config.merging.precedence import Layer
from infrastructure.config.schema import schema_of
from infrastructure.config.types import SameResult
from infrastructure.core.features import fields_of_features, models_of_features, plugins_of

SECTIONS_THAT_COUNT = ("model.", "data.", "training.")
BACKEND = "model.backend"
# Locations. The same content at another location is the same training.
PLACES = (
    *("model.name", "data.path", "data.eval_path", "data.chat_template"),
    *models_of_features(),
)


def affects_result(key: str) -> bool:
    """Return whether a canonical key decides the result of training."""
    spec = schema_of(DeploymentConfig).fields.get(key)
    counts = key.startswith((*SECTIONS_THAT_COUNT, *_sections_of_features()))
    return counts and not (spec and metadata_of(spec.info, SameResult))


def _sections_of_features() -> tuple[str, ...]:
    return tuple(f"{name}." for name in fields_of_features(""))


def result_settings(config: DeploymentConfig) -> dict[str, object]:
    """Return key → JSON value for settings that affect the result; local paths are absolute."""
    nested = config.to_dict()["values"]
    left_out = tuple(_without_effect_on_the_result(config))
    keys = [
        key for key in config.present_keys() if affects_result(key) and not key.startswith(left_out)
    ]
    settings = {key: _inside(nested, key) for key in keys}
    fields = schema_of(DeploymentConfig).fields
    return settings | {
        key: True for key in settings if fields[key].is_switch and settings[key] is not None
    }


def _without_effect_on_the_result(config: DeploymentConfig) -> Iterator[str]:
    """Yield key prefixes of settings that can affect results, but not in this configuration."""
    training = config.training
    disabled = plugins_of("temper.extensions").keys() - {*training.extensions}
    for name in fields_of_features("") & disabled:
        yield f"{name}."
    if training.early_stopping_patience is None or not training.best_needs_answers:
        yield "training.validation_prompts"  # more prompts only make the measurement more precise


def backend_taken(settings: Mapping[str, object]) -> Literal["transformers", "unsloth"]:
    """Return the library that loaded a run's model, according to a checkpoint's settings.

    If `auto` chose Unsloth, the settings record this choice.
    """
    return "unsloth" if settings.get(BACKEND) == "unsloth" else "transformers"


def differing_keys(recorded: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    """Yield, in order, the keys that differ between recorded and current settings.

    A local path that no longer exists is compared only by its name. A run that resumes elsewhere
    may find its data in another folder, and the data is compared by content before training
    continues. Settings that no longer exist are not compared. They had their defaults:
    a configuration in which a user set such a setting cannot be read.
    """
    fields = schema_of(DeploymentConfig).fields
    for key in dict.fromkeys([*recorded, *now]):
        if key not in fields:
            continue
        was, current = recorded.get(key), now.get(key)
        if key not in recorded and current == _default(key):
            continue  # recorded before this setting existed
        if was != current and not (key in PLACES and _has_moved(was, current)):
            yield key


def kept_defaults(config: DeploymentConfig, began: DeploymentConfig) -> dict[str, object]:
    """Return key → old default, for defaults that have changed since a run began.

    A resumed run keeps the defaults of the Temper version with which it began.

    Args:
        began: the configuration that the run recorded.
    """
    there = set(config.present_keys())
    return {
        key: began.value(key)
        for key in began.present_keys()
        if key in there
        and affects_result(key)
        and began.value(key) != config.value(key)
        and {began.source(key).layer, config.source(key).layer} == {Layer.DEFAULT}
    }


def _default(key: str) -> object:
    spec = schema_of(DeploymentConfig).fields.get(key)
    return None if spec is None else spec.default


def _has_moved(was: object, current: object) -> bool:
    if not isinstance(was, str) or not isinstance(current, str):
        return False
    same_name = Path(was).name == Path(current).name
    return same_name and Path(was).is_absolute() and not _exists(was)


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a template, not a path
        return False


def _inside(values: Mapping[str, Any], key: str) -> Any:
    for name in key.split("."):
        values = values[name]
    return values
