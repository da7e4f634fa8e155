"""The alternative spellings of configuration keys, mapped to the canonical key (`section.field`).

Temper's specifications spell some keys in several ways, and this table lists them all. It
converts only names, never values.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from infrastructure.core.features import merged

# Other names of sections. The first matching prefix is replaced, then KEYS is consulted.
PREFIXES = {
    **merged("aliases"),
    "optimization.": "training.",
    "processing.": "training.",
    "resource.": "resources.",
}
# Beginnings of fields that can also be given as a section, or as one object.
VIEWS = {meant for meant in PREFIXES.values() if meant.endswith("_")}

KEYS = {
    "model_name": "model.name",
    "data_path": "data.path",
    "batch_size": "training.batch_size",
    "learning_rate": "training.learning_rate",
    "num_epochs": "training.num_epochs",
    "checkpoint_interval": "training.checkpoint_interval",
    "validation_interval": "training.validation_interval",
    "enable_mixed_precision": "training.mixed_precision",
    "data.batch_size": "training.batch_size",
    "training.accumulation_steps": "training.gradient_accumulation",
    "training.num_workers": "data.num_workers",
    "training.prefetch_factor": "data.prefetch_factor",
    "training.pin_memory": "data.pin_memory",
    "training.memory_limit": "data.memory_limit",
    "training.buffer_size": "data.buffer_size",
}


def canonical(key: str) -> str:
    """Return the canonical form of a dotted key; a key that is not in the table is unchanged."""
    for prefix, meant in PREFIXES.items():
        if key.startswith(prefix):
            key = meant + key.removeprefix(prefix)
            break
    return KEYS.get(key, key)


def canonical_section(path: str) -> str:
    """Return the canonical path of a section that is given by its path or an alias."""
    return canonical(path + ".").removesuffix(".")


def spellings(keys: Collection[str]) -> dict[str, str]:
    """Return a mapping of accepted spelling → canonical key, for `keys` and for all of `KEYS`."""
    key_of = {key: key for key in keys} | KEYS
    for prefix, meant in PREFIXES.items():
        inside = [known for known in key_of if known.startswith(meant)]
        key_of |= {prefix + known.removeprefix(meant): key_of[known] for known in inside}
    return key_of


def spelt_in_section(section: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str, object]]:
    """Yield (given name, canonical key, value) for the keywords of a section, also nested ones."""
    for name, value in values.items():
        path = f"{section}.{name}"
        if canonical_section(path) in VIEWS and value is not None:
            inner = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
            for sub, sub_value in inner.items():
                yield f"{name}.{sub}", canonical(f"{path}.{sub}"), sub_value
        elif (meant := canonical_section(path)) not in VIEWS:
            yield name, canonical(path) if meant == path else meant, value
