"""The settings that decide the result of a run, and the comparison of two configurations by them.

All other settings may change when a run resumes, because they affect only where, how fast, how
safely or how visibly the same numbers are computed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from infrastructure.config.aliases import canonical
from infrastructure.config.deployment_config import GONE, DeploymentConfig
from infrastructure.config.field_help import metadata_of
from infrastructure.config.merging.precedence import Layer
from infrastructure.config.schema import schema_of
from infrastructure.config.types import SameResult
from infrastructure.core.features import feature_sections

SECTIONS_THAT_COUNT = ("model.", "data.", "training.")
# Defaults that have changed, with their earlier values, oldest first. A run that began with one of
# them keeps it. A run that recorded none is from the time of the first.
EARLIER_DEFAULTS: dict[str, tuple[object, ...]] = {
    "data.over_length": ("quarantine",),
    "model.adapter": ("standard",),
}
# False has the same effect as None, and was the default of earlier runs.
OFF_IS_NONE = ("training.backbone_quantized", "training.qlora_progressive_enabled")
# These have not always counted: records of earlier versions do not show their values.
COUNTED_LATER = ("training.validation_prompts",)
BACKEND = "model.backend"
# Locations. The same content at another location is the same training.
PLACES = (
    *("model.name", "data.path", "data.eval_path", "data.chat_template"),
    *("training.teacher", "training.multimodal.vision_tower"),
)


def affects_result(key: str) -> bool:
    """Return whether a canonical key decides the result of training."""
    spec = schema_of(DeploymentConfig).fields.get(key)
    counts = key.startswith((*SECTIONS_THAT_COUNT, *_sections_of_features()))
    return counts and not (spec and metadata_of(spec.info, SameResult))


def _sections_of_features() -> tuple[str, ...]:
    return tuple(f"{name}." for name in feature_sections())


def result_settings(config: DeploymentConfig) -> dict[str, object]:
    """Return the settings that decide the result, by key, as JSON. Local paths are absolute."""
    nested = config.to_dict()["values"]
    left_out = tuple(_without_effect_on_the_result(config))
    keys = [
        key for key in config.present_keys() if affects_result(key) and not key.startswith(left_out)
    ]
    settings = {key: _inside(nested, key) for key in keys}
    fields = schema_of(DeploymentConfig).fields
    return current_keys(settings) | {
        key: True for key in settings if fields[key].is_switch and settings[key] is not None
    }


def _without_effect_on_the_result(config: DeploymentConfig) -> Iterator[str]:
    """Yield the prefixes of keys that can decide a result but do not in this configuration."""
    training = config.training
    for name in feature_sections() - {*training.extensions}:
        yield f"{name}."
    if training.early_stopping_patience is None or not training.best_needs_answers:
        yield "training.validation_prompts"  # more prompts only make the measurement more precise


def backend_taken(settings: Mapping[str, object]) -> Literal["transformers", "unsloth"]:
    """Return the library that loaded the model, from the settings of a checkpoint.

    The settings record Unsloth if `auto` chose it.
    """
    return "unsloth" if settings.get(BACKEND) == "unsloth" else "transformers"


def differing_keys(recorded: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    """Yield, in order, the keys that differ between recorded and current settings.

    A local path that no longer exists is compared only by its name. A run that resumes elsewhere
    may find its data in another folder, and the data is compared by content before training
    continues.
    """
    recorded = current_keys(recorded)
    for key in dict.fromkeys([*recorded, *now]):
        was, current = recorded.get(key), now.get(key)
        if key not in recorded and (key in COUNTED_LATER or current == _default(key)):
            continue  # recorded before this setting existed
        if was is True and isinstance(current, Mapping):  # earlier versions recorded a mapping
            continue
        if was != current and not (key in PLACES and _has_moved(was, current)):
            yield key


def earlier_settings(config: DeploymentConfig, recorded: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of `config`, interpreted for a run with these recorded settings.

    A setting that the user did not give has the default that applied when the run began.
    """
    recorded = current_keys(recorded)
    had = {key.partition(".")[0] for key in recorded}
    began_with = {key: recorded.get(key, values[0]) for key, values in EARLIER_DEFAULTS.items()}
    return {
        key: value
        for key, value in began_with.items()
        if value in EARLIER_DEFAULTS[key]
        and config.source(key).layer is Layer.DEFAULT
        and key.partition(".")[0] in had
    }


def current_keys(recorded: Mapping[str, object]) -> dict[str, object]:
    """Return recorded settings under the current keys, without those that no longer exist.

    Values that have the same effect become equal.
    """
    kept = {key: value for key, value in recorded.items() if tuple(key.split(".")) not in GONE}
    off = {key for key, value in kept.items() if key in OFF_IS_NONE and value is False}
    return {canonical(key): None if key in off else value for key, value in kept.items()}


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
