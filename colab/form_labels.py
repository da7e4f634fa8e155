"""Labels of settings and groups in a form, in plain words."""

from infrastructure.config.base import owners

LABELS = {
    "backup.allow_missing_place": "Train without a backup destination",
    "backup.finish_seconds": "Wait for the last backup (seconds)",
    "backup.keep": "Checkpoints kept in the backup",
    "backup.megabytes_per_second": "Upload limit (MB/s)",
    "backup.place": "Back up to",
    "cuda_visible_devices": "GPUs to use",
    "data.encoding": "Text encoding",
    "data.eval_path": "Held-out data",
    "data.max_bad_rows_percent": "Maximum share of bad rows (%)",
    "data.max_length": "Maximum length (tokens)",
    "data.over_length": "Examples over the maximum length",
    "data.path": "Training data",
    "data.shape": "Row format",
    "data.train_on": "Train on",
    "data.validation_split": "Validation split",
    "enable_backups": "Back up",
    "enable_monitoring": "Monitor the machine",
    "enable_testing": "Check everything before training",
    "model.backend": "Load the model with",
    "model.dtype": "Weight dtype",
    "model.lora_config": "LoRA",
    "model.lora_config.r": "LoRA rank",
    "model.lora_config.alpha": "LoRA alpha",
    "model.lora_config.dropout": "LoRA dropout",
    "model.lora_config.target_modules": "LoRA target modules",
    "model.name": "Model",
    "model.trust_remote_code": "Run the model's own code",
    "new_run": "Start a new run",
    "output_dir": "Output folder",
    "training.checkpoint_frequency": "Save every … steps",
    "training.checkpoint_interval": "Save every … epochs",
    "training.checkpoint_seconds": "Save every … seconds",
    "training.deadline": "Stop after",
    "training.early_stopping_patience": "Early stopping: patience",
    "training.gradient_accumulation": "Gradient accumulation steps",
    "training.log_frequency": "Log every … steps",
    "training.max_grad_norm": "Gradient clipping",
    "training.max_steps": "Maximum steps",
    "training.num_epochs": "Epochs",
    "training.scheduler_type": "Learning rate schedule",
    "training.validation_frequency": "Evaluate every … steps",
    "training.validation_interval": "Evaluate every … epochs",
    "training.validation_prompts": "Prompts to answer",
}
TITLES = {
    "run": "Run",
    "model.lora_config": "LoRA",
    "model.embedded": "The built-in small model",
    "training.recovery": "Recovery from errors",
    "memory": "Memory",
    "monitor": "Monitoring",
    "monitor.thresholds": "Alerts",
    "resources.gpu": "GPU",
}
_AS_WRITTEN = {"gpu": "GPU", "cpu": "CPU", "lr": "learning rate", "qlora": "QLoRA", "lora": "LoRA"}


def label_of(key: str) -> str:
    """Return the label of a setting: `Warmup steps` for `training.warmup_steps`."""
    if key in LABELS:
        return LABELS[key]
    name = key.rpartition(".")[2]
    if key in owners():  # some are named like settings of other parts: `qlora_rank`
        return f"{owners()[key].heading.capitalize()}: {_as_written(name)}"
    return _in_words(name)


def title_of(group: str) -> str:
    """Return the title of a group of settings."""
    return TITLES.get(group) or _in_words(group.replace(".", ": "))


def _in_words(name: str) -> str:
    text = _as_written(name)
    return text[:1].upper() + text[1:]


def _as_written(name: str) -> str:
    return " ".join(_AS_WRITTEN.get(word, word) for word in name.split("_"))
