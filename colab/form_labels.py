"""Labels of settings and of their groups in a form: plain words, shown next to the keys."""

LABELS = {
    "backup.allow_missing_place": "Train without the place",
    "backup.finish_seconds": "Wait for the last copy (seconds)",
    "backup.keep": "Versions kept there",
    "backup.megabytes_per_second": "Copy at most (MB/s)",
    "backup.place": "Copy everything to",
    "cuda_visible_devices": "GPUs to use",
    "data.encoding": "Written in",
    "data.eval_path": "Held-out data",
    "data.max_bad_rows_percent": "Bad rows at most (%)",
    "data.max_length": "Longest example (tokens)",
    "data.over_length": "Longer examples",
    "data.path": "Training data",
    "data.shape": "Kind of rows",
    "data.train_on": "Learn",
    "data.validation_split": "Share held out",
    "enable_backups": "Back up",
    "enable_monitoring": "Watch the machine",
    "enable_testing": "Try everything out before",
    "model.backend": "Loaded by",
    "model.dtype": "Weights held in",
    "model.lora_config": "LoRA",
    "model.lora_config.r": "LoRA rank",
    "model.lora_config.alpha": "LoRA alpha",
    "model.lora_config.dropout": "LoRA dropout",
    "model.lora_config.target_modules": "LoRA on the layers",
    "model.name": "Model",
    "model.trust_remote_code": "Run the model's own code",
    "new_run": "Begin a new run",
    "output_dir": "Folder of runs",
    "training.adam_beta1": "Adam beta 1",
    "training.adam_beta2": "Adam beta 2",
    "training.checkpoint_frequency": "Checkpoint every … steps",
    "training.checkpoint_interval": "Checkpoint every … epochs",
    "training.checkpoint_seconds": "Checkpoint every … seconds",
    "training.deadline": "Stop after",
    "training.early_stopping_patience": "Early stopping: patience",
    "training.early_stopping_min_delta": "Early stopping: least gain",
    "training.gradient_accumulation": "Batches per step",
    "training.log_frequency": "Log every … steps",
    "training.max_grad_norm": "Clip gradients at",
    "training.max_steps": "Steps at most",
    "training.num_epochs": "Epochs",
    "training.optimization_frequency": "Quantum step every … steps",
    "training.qlora_lr": "QLoRA learning rate",
    "training.scheduler_type": "Learning rate schedule",
    "training.validation_frequency": "Evaluate every … steps",
    "training.validation_interval": "Evaluate every … epochs",
    "training.validation_prompts": "Prompts to answer",
}
TITLES = {
    "run": "Run",
    "model.lora_config": "LoRA",
    "model.embedded": "The small model that comes with Temper",
    "training.recovery": "When something goes wrong",
    "training.progressive": "Training: growing stacks",
    "memory": "Memory",
    "monitor": "Watching the machine",
    "monitor.thresholds": "Alerts",
    "resources.gpu": "GPU",
    "quantum": "Quantum step",
}
_AS_WRITTEN = {"gpu": "GPU", "cpu": "CPU", "lr": "learning rate", "qlora": "QLoRA", "lora": "LoRA"}


def label_of(key: str) -> str:
    """Return the label of a setting: `Warmup steps` for `training.warmup_steps`."""
    return LABELS.get(key) or _in_words(key.rpartition(".")[2])


def title_of(group: str) -> str:
    """Return the title of a group of settings."""
    return TITLES.get(group) or _in_words(group)


def _in_words(name: str) -> str:
    text = " ".join(_AS_WRITTEN.get(word, word) for word in name.split("_"))
    return text[:1].upper() + text[1:]
