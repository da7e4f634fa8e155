"""A key-value memory that a model reads by attention: trained slots and past tokens."""

from infrastructure.core.features import Feature

_HERE = "infrastructure.features.key_value_memory"

FEATURE = Feature(
    name="key_value_memory",
    fields={"training": f"{_HERE}.config:MemoryTraining"},
    plugins={"temper.extensions": {"memory": f"{_HERE}.extension:KeyValueMemoryExtension"}},
    checks=f"{_HERE}.checks:problems",
)
