"""A value other than the default for every field of the configuration, and its text."""

import json
from typing import Any

from infrastructure.config.base import kinds
from infrastructure.config.field_help import metadata_of
from infrastructure.config.schema import FieldSpec
from infrastructure.config.types import RegisteredName
from infrastructure.features.stackwise.registries import CACHES


def memory_cache(*arguments: Any, **options: Any) -> Any:
    """A cache in memory; loaded when one is made, because these values are used without PyTorch."""
    from tests.features.stackwise.training.memory_cache import MemoryCache

    return MemoryCache(*arguments, **options)


CACHES.register("something", memory_cache)  # of our own there is one only, the default

# Where the next number or another choice would not fit the field.
SPECIAL: dict[str, Any] = {
    "device": "cpu",
    "data.encoding": "cp1252",
    "data.image_background": "#8090ff",
    "data.memory_limit": "90%",
    "training.mixed_precision": "bf16",
    "training.time_step_bins": [0, 5],
    "training.time_step_mask_fractions": {0: 0.15, 9: 0.9},
    "training.qlora_ranks": {0: 4, 2: 8},
    "training.enabled_extensions": ["memory", "quantum"],
    "training.metrics_sinks": ["csv", "jsonl"],
    "data.augmentation": "math:sqrt",
    "training.loss": "math:sqrt",
    "training.metrics": ["math:sqrt", "math:exp"],
    "training.rewards": ["exact_answer", "format=.*"],
    "training.method_settings": {"loss_type": "ipo"},
    "training.settings": {"stages": 3, "names": ["a"]},
    "quantum.fallback": ["dense_annealer", "exact"],
    "monitor.alert_sinks": ["log"],
    "monitor.prometheus": "0.0.0.0:9400",
    "model.lora_config.target_modules": ["q_proj", "v_proj"],
    "model.embedded.num_heads": 8,
    "model.embedded.hidden_size": 96,
}


def other_value(spec: FieldSpec) -> Any:
    """A value that the field takes and that is not its default."""
    if spec.key in SPECIAL:
        return SPECIAL[spec.key]
    if spec.is_switch:
        return True
    types = kinds(spec.info.annotation)
    choices = [v for v in types if isinstance(v, str) and v != spec.default]
    if bool in types:
        return not spec.default
    if choices and int not in types and float not in types:
        return sorted(choices)[0]
    if int in types:
        return spec.default + 1 if isinstance(spec.default, int) else 7
    if float in types:
        return 0.25
    if named := metadata_of(spec.info, RegisteredName):
        return next(name for name in reversed(named.names()) if name != spec.default)
    if spec.name == "price_per_hour":
        return "2.5 EUR"
    return "40GB" if "size" in spec.name or "memory" in spec.name else "something"


def as_text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return json.dumps(value) if isinstance(value, bool | dict) else str(value)
