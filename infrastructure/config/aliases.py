"""Every other spelling of a key, and the canonical key (`section.field`) that it means.

The specifications spell one thing in several places; this is the one table that knows. It maps
names, never values.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

# A section under another name. The first that fits is taken, then KEYS is asked.
PREFIXES = {
    "optimization.": "training.",
    "processing.": "training.",
    "resource.quantum.": "quantum.",
    "resources.quantum.": "quantum.",
    "resource.": "resources.",
    "training.qlora.": "training.qlora_",
    "qlora.": "training.qlora_",
}

QLORA = "training.qlora_"  # fields that may be given as a section, too

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
    """The canonical form of a dotted key; a key that is no other spelling stays as it is."""
    for prefix, meant in PREFIXES.items():
        if key.startswith(prefix):
            key = meant + key.removeprefix(prefix)
            break
    return KEYS.get(key, key)


def canonical_section(path: str) -> str:
    """The canonical form of a section's path; `QLORA` for the nested `qlora`."""
    return canonical(path + ".").removesuffix(".")


def spellings(keys: Collection[str]) -> dict[str, str]:
    """Every spelling of some canonical keys, those themselves among them: spelling → key."""
    key_of = {key: key for key in keys} | KEYS
    for prefix, meant in PREFIXES.items():
        inside = [known for known in key_of if known.startswith(meant)]
        key_of |= {prefix + known.removeprefix(meant): key_of[known] for known in inside}
    return key_of


def spelt_in_section(section: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str, object]]:
    """(name as given, canonical key, value) of keywords for one section; `qlora` is opened."""
    for name, value in values.items():
        path = f"{section}.{name}"
        if canonical_section(path) == QLORA and value is not None:
            inner = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
            for sub, sub_value in inner.items():
                yield f"{name}.{sub}", canonical(f"{path}.{sub}"), sub_value
        elif (meant := canonical_section(path)) != QLORA:
            yield name, canonical(path) if meant == path else meant, value
