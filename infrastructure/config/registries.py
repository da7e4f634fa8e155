"""The registries of everything that is chosen by name and can be extended.

Names are added by `register` in a script, or by an entry point of an installed package. Instead of
a name, an address `module:name` can be given. This module knows the names without loading the code
behind them, so that a wrong name is reported at once. The comment above each registry names the
module with the built-in entries.
"""

from typing import Any

from infrastructure.core.features import plugins_of
from infrastructure.core.registry import Registry

# training.strategies
STRATEGIES: Registry[Any] = Registry(
    "training strategy",
    "temper.strategies",
    ("standard", "finetune"),
    decides=True,
)
# training.strategies.base_strategy, as are the schedulers
OPTIMIZERS: Registry[Any] = Registry(
    "optimizer",
    "temper.optimizers",
    ("adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit", "adamw_offload", "sgd"),
    decides=True,
)
SCHEDULERS: Registry[Any] = Registry(
    "scheduler", "temper.schedulers", ("cosine", "linear", "constant"), decides=True
)
# those of features; models.registry adds the names that `register_model` is given
REGISTERED_MODELS: set[str] = {*plugins_of("temper.models")}
# config.methods; `sft` is Temper's own loop
METHODS: Registry[Any] = Registry(
    "training method",
    "temper.methods",
    ("dpo", "kto", "orpo", "grpo", "rloo", "reward"),
    decides=True,
)
# training.model_adapters
ADAPTERS: Registry[Any] = Registry(
    "model adapter", "temper.adapters", ("standard", "dialogue", "multimodal"), decides=True
)
# models.token_functions
LOSSES: Registry[Any] = Registry("loss", "temper.losses", ("cross_entropy",), decides=True)
METRICS: Registry[Any] = Registry("metric", "temper.metrics")
# training.extensions.extension_manager
EXTENSIONS: Registry[Any] = Registry("extension", "temper.extensions", decides=True)
# deployment.export_request
EXPORT_FORMATS: Registry[Any] = Registry("export format", "temper.export_formats", ("safetensors",))
# data.readers.sources
FORMATS: Registry[Any] = Registry(
    "data format",
    "temper.formats",
    ("json", "jsonl", "csv", "tsv", "text", "parquet", "huggingface"),
    decides=True,
)
# data.encoding.augmentation
AUGMENTATIONS: Registry[Any] = Registry("augmentation", "temper.augmentations", decides=True)
# training.metrics.sinks
SINKS: Registry[Any] = Registry("metrics sink", "temper.sinks", ("console", "jsonl", "csv"))
# monitoring.watching.alert_sinks
ALERT_SINKS: Registry[Any] = Registry("alert sink", "temper.alert_sinks", ("console", "log"))
# backup.backends; the names are schemes of URLs, and fsspec is asked for any other
BACKENDS: Registry[Any] = Registry(
    "storage backend", "temper.backends", ("folder", "file", "local", "drive", "hf", "fsspec")
)
