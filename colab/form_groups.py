"""Groups of settings that a form shows together, from the schema of the configuration."""

from infrastructure.config.base import owners
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of

FIELDS = schema_of(DeploymentConfig).fields
# The settings that most users set, in the order in which they think of them.
BASIC = (
    "model.name",
    "data.path",
    "data.eval_path",
    "data.max_length",
    "model.lora_config",
    "model.quantization",
    "training.num_epochs",
    "training.max_steps",
    "training.batch_size",
    "training.learning_rate",
    "training.deadline",
    "price_per_hour",
    "backup.place",
)
RUN = "run"
# Too many for one list.
_CHECKPOINTS = ("checkpoint_", "keep_", "deadline")
_EXTENSIONS = (
    "enabled_extensions",
    "extension_",
    "optimization_frequency",
)
_LOOKS = ("validation_", "log_frequency", "early_stopping", "metrics_sinks")


def groups() -> dict[str, list[str]]:
    """Return the names of the groups, each with the keys of its settings."""
    by_title: dict[str, list[str]] = {}
    for key in FIELDS:
        by_title.setdefault(_title(key), []).append(key)
    return by_title


def _title(key: str) -> str:
    section, _, name = key.rpartition(".")
    if section == "training" and name.startswith(_CHECKPOINTS):
        return "training: checkpoints"
    if section == "training" and name.startswith(_LOOKS):
        return "training: evaluation"
    if section == "training" and name.startswith(_EXTENSIONS):
        return "training: extensions"
    if key in owners():
        return f"{section}: {owners()[key].heading}"
    if FIELDS[key].is_switch:
        return key
    return section or RUN
