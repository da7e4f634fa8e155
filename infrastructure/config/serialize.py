"""Conversion of a configuration for run.json: secrets are masked, and paths made absolute.

The keys of masked values are recorded, so that a mask is never read back as a value.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from infrastructure.config.base import ConfigurationError
from infrastructure.core.features import features, models_of_features
from infrastructure.core.redact import MASK, redact_mapping, redact_urls

_OF_FEATURES = tuple(key for feature in features() for key in feature.folders)
# Their values are paths: what looks like a token in them is a name. A URL's password is not.
PATHS = (
    "model.name",
    "data.path",
    "data.eval_path",
    "data.chat_template",
    "cache.directory",
    "output_dir",
    "backup.place",
    *models_of_features(),
    *_OF_FEATURES,
)
# A run resumes without it; the user can give it again.
NOT_NEEDED = "backup.place"
# Never a name on the Hub: made absolute even if it does not exist yet.
ALWAYS_LOCAL = ("cache.directory", "output_dir", *_OF_FEATURES)


def without_secrets(
    values: Mapping[str, Any], masked: list[str], prefix: str = ""
) -> dict[str, object]:
    """Return a copy of nested values with secrets masked, and add their keys to `masked`."""
    copied: dict[str, object] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            copied[name] = without_secrets(value, masked, f"{key}.")
            continue
        is_path = key in PATHS and isinstance(value, str)
        copied[name] = redact_urls(value) if is_path else redact_mapping({name: value})[name]
        if copied[name] != value:
            masked.append(key)
    return copied


def refuse_masked(saved: Mapping[str, Any]) -> None:
    """Check that a saved configuration has no masked values, which cannot be restored.

    Raises:
        ConfigurationError: if values are masked; the message names their settings.
    """
    masked = [key for key in saved["masked"] if key != NOT_NEEDED]
    if masked:
        raise ConfigurationError("config.recorded_value_masked", keys=", ".join(masked), mask=MASK)


def without_gone_defaults(
    values: Mapping[str, Any], fields: Collection[str], given: Collection[str], below: str = ""
) -> dict[str, Any]:
    """Return saved values, without settings that no longer exist and that had their default.

    A saved configuration also contains the defaults of the version that wrote it.

    Args:
        fields: the keys of the settings that exist.
        given: the keys of the saved settings that were set by a user.
        below: the key of the section that contains `values`, with a dot; "" for the root.
    """
    kept = {}
    for name, value in values.items():
        key = f"{below}{name}"
        is_section = isinstance(value, Mapping) and _has_prefix(fields, f"{key}.")
        if key not in fields and is_section:
            kept[name] = without_gone_defaults(value, fields, given, f"{key}.")
        elif key in fields or key in given or _has_prefix(given, f"{key}."):
            kept[name] = value
    return kept


def _has_prefix(keys: Collection[str], prefix: str) -> bool:
    return any(key.startswith(prefix) for key in keys)


def without_masked_place(saved: Mapping[str, Any]) -> dict[str, object]:
    """Return saved values, without the backup destination if its password was masked."""
    values = dict(saved["values"])
    place = values.get("backup", {}).get("place")
    if place is not None and MASK in place:
        values["backup"] = {**values["backup"], "place": None}
    return values


def absolute_place(key: str, value: str, model_names: Collection[str]) -> str:
    """Make a local path absolute; names of models and Hub datasets are returned unchanged.

    Args:
        model_names: names that mean a model even if there is a folder with the same name.
    """
    is_folder = key == "backup.place" and ":" not in value
    if key in ALWAYS_LOCAL or is_folder or (value not in model_names and _exists(value)):
        return str(Path(value).absolute())
    place, colon, part = value.rpartition(":")  # a split of a saved dataset: FOLDER:train
    if colon and _exists(place):
        return f"{Path(place).absolute()}:{part}"
    return value


def _exists(text: str) -> bool:
    """Return whether a text is an existing path; for long texts, Path.exists would fail."""
    return os.path.exists(text)  # noqa: PTH110
