"""The key-value memory: weights and a store that a model reads after one of its layers."""

from infrastructure.core.features import Feature

_HERE = "infrastructure.features.key_value_memory"

FEATURE = Feature(
    name="key_value_memory",
    fields={"training": f"{_HERE}.config:MemoryTraining"},
    plugins={"temper.extensions": {"memory": f"{_HERE}.extension:KeyValueMemoryExtension"}},
    checks=f"{_HERE}.checks:problems",
)
