"""Names of settings in other tools, with Temper's name for the same setting, or advice."""

from infrastructure.config.aliases import canonical
from infrastructure.core.features import merged
from infrastructure.core.messages import Setting, phrase

# name -> Temper's settings, `key` or `key=value`; a name is written with "_", as in a file.
SAME: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("lr", "max_lr"), ("training.learning_rate",)),
    "train_batch_size": ("training.batch_size",),
    "micro_batch_size": ("training.batch_size",),
    "bs": ("training.batch_size",),
    "per_device_train_batch_size": ("training.batch_size",),
    "per_device_batch_size": ("training.batch_size",),
    "per_gpu_train_batch_size": ("training.batch_size",),
    "train_micro_batch_size_per_gpu": ("training.batch_size",),
    "global_batch_size": ("training.batch_size", "training.gradient_accumulation"),
    "auto_find_batch_size": ("training.batch_size=auto",),
    "gradient_accumulation_steps": ("training.gradient_accumulation",),
    "grad_accum": ("training.gradient_accumulation",),
    "accumulate_grad_batches": ("training.gradient_accumulation",),
    **dict.fromkeys(
        ("num_train_epochs", "train_epochs", "n_epochs", "max_epochs"), ("training.num_epochs",)
    ),
    **dict.fromkeys(("steps", "iters", "max_iters", "num_steps"), ("training.max_steps",)),
    "optim": ("training.optimizer",),
    "lr_scheduler": ("training.scheduler_type",),
    "lr_scheduler_type": ("training.scheduler_type",),
    **dict.fromkeys(("warmup", "num_warmup_steps", "lr_warmup_steps"), ("training.warmup_steps",)),
    "clip_grad_norm": ("training.max_grad_norm",),
    "gradient_clipping": ("training.max_grad_norm",),
    "bf16": ("training.mixed_precision=bf16",),
    "fp16": ("training.mixed_precision=fp16",),
    "fp32": ("training.mixed_precision=fp32",),
    "amp": ("training.mixed_precision=true",),
    "precision": ("training.mixed_precision",),
    "use_gradient_checkpointing": ("training.gradient_checkpointing",),
    "activation_checkpointing": ("training.gradient_checkpointing",),
    "activation_offloading": ("training.gradient_checkpointing_mode=offload",),
    "save_steps": ("training.checkpoint_frequency",),
    "save_every": ("training.checkpoint_frequency",),
    "checkpoint_every": ("training.checkpoint_frequency",),
    "checkpointing_steps": ("training.checkpoint_frequency",),
    "saves_per_epoch": ("training.checkpoint_interval",),
    "save_strategy": ("training.checkpoint_frequency",),
    "save_total_limit": ("training.keep_checkpoints",),
    **dict.fromkeys(("metric_for_best_model", "monitor_metric"), ("training.best_metric",)),
    "greater_is_better": ("training.best_metric_mode=max",),
    **dict.fromkeys(
        ("eval_steps", "eval_every", "eval_frequency", "val_check_interval", "do_eval"),
        ("training.validation_frequency",),
    ),
    **dict.fromkeys(
        ("eval_strategy", "evaluation_strategy", "evals_per_epoch"),
        ("training.validation_interval",),
    ),
    **dict.fromkeys(
        ("val_split", "eval_split", "val_size", "val_set_size", "test_size", "split"),
        ("data.validation_split",),
    ),
    **dict.fromkeys(("logging_steps", "log_every", "log_steps"), ("training.log_frequency",)),
    "logging": ("log_level",),
    "verbosity": ("log_level",),
    "report_to": ("training.metrics_sinks",),
    "tensorboard": ("training.metrics_sinks=tensorboard",),
    "tb": ("training.metrics_sinks=tensorboard",),
    **dict.fromkeys(("wandb", "use_wandb", "wandb_project"), ("training.metrics_sinks=wandb",)),
    "trackio": ("training.metrics_sinks=trackio",),
    "torch_compile": ("training.compile_mode",),
    "compile": ("training.compile_mode",),
    **dict.fromkeys(("early_stopping", "patience"), ("training.early_stopping_patience",)),
    **dict.fromkeys(("random_seed", "random_state", "manual_seed"), ("training.seed",)),
    **dict.fromkeys(
        (
            "max_seq_length",
            "max_seq_len",
            "max_sequence_length",
            "sequence_length",
            "seq_len",
            "seq_length",
            "sequence_len",
            "cutoff_len",
            "context_length",
            "block_length",
            "model_max_length",
            "max_tokens",
        ),
        ("data.max_length",),
    ),
    **dict.fromkeys(("file_encoding", "charset"), ("data.encoding",)),
    "truncation": ("data.over_length=truncate",),
    **dict.fromkeys(("sample_packing", "pack", "use_packing", "neat_packing"), ("data.packing",)),
    "truncation_mode": ("data.over_length",),
    "excess_length_strategy": ("data.over_length",),
    **dict.fromkeys(("train_on_inputs", "train_on_prompt"), ("data.train_on=all",)),
    **dict.fromkeys(
        (
            "assistant_only_loss",
            "completion_only_loss",
            "train_on_responses_only",
            "train_on_completions",
        ),
        ("data.train_on",),
    ),
    **dict.fromkeys(("mask_history", "last_response_only"), ("data.train_on=last_answer",)),
    **dict.fromkeys(
        (
            "dataset",
            "datasets",
            "dataset_name",
            "dataset_path",
            "dataset_dir",
            "train_file",
            "train_data",
            "train_dataset",
            "training_data",
            "data_files",
            "input",
        ),
        ("data.path",),
    ),
    **dict.fromkeys(
        (
            *("validation_file", "eval_file", "val_file", "eval_dataset", "val_dataset"),
            *("test_datasets", "val_data", "test_data"),
        ),
        ("data.eval_path",),
    ),
    **dict.fromkeys(("dataset_text_field", "text_field"), ("data.text_column",)),
    "template": ("data.chat_template",),
    **dict.fromkeys(
        (
            *("dataloader_num_workers", "preprocessing_num_workers", "dataset_processes"),
            *("workers", "dataset_num_proc", "num_proc"),
        ),
        ("data.num_workers",),
    ),
    "dataloader_prefetch_factor": ("data.prefetch_factor",),
    "dataloader_pin_memory": ("data.pin_memory",),
    **dict.fromkeys(
        (
            "model_name_or_path",
            "base_model",
            "pretrained_model_name_or_path",
            "model_path",
            "model_id",
            "base_model_name",
            "base_model_name_or_path",
            "checkpoint_path",
            # of a LoRA to continue
            "adapter_name_or_path",
            "lora_model_dir",
        ),
        ("model.name",),
    ),
    "model_revision": ("model.revision",),
    "torch_dtype": ("model.dtype",),
    "attn_implementation": ("model.attention",),
    **dict.fromkeys(
        ("flash_attention", "flash_attn", "use_flash_attention_2"),
        ("model.attention=flash_attention_2",),
    ),
    "sdp_attention": ("model.attention=sdpa",),
    "unsloth": ("model.backend=unsloth",),
    "use_unsloth": ("model.backend=unsloth",),
    **dict.fromkeys(
        ("use_lora", "use_peft", "peft", "peft_config", "finetuning_type"),
        ("model.lora_config",),
    ),
    **dict.fromkeys(("lora_r", "lora_rank", "rank", "r"), ("model.lora_config.r",)),
    **dict.fromkeys(("lora_alpha", "alpha"), ("model.lora_config.alpha",)),
    "lora_dropout": ("model.lora_config.dropout",),
    **dict.fromkeys(
        ("lora_target", "lora_target_modules", "lora_target_linear", "target_modules"),
        ("model.lora_config.target_modules",),
    ),
    **dict.fromkeys(("load_in_4bit", "int4", "nf4"), ("model.quantization=4bit",)),
    **dict.fromkeys(("load_in_8bit", "int8"), ("model.quantization=8bit",)),
    **dict.fromkeys(("quantize", "quantization_bit", "bits", "bnb"), ("model.quantization",)),
    **dict.fromkeys(
        ("qlora", "use_qlora", "qlora_enabled"), ("model.lora_config", "model.quantization=4bit")
    ),
    **dict.fromkeys(("use_dora", "dora", "peft_use_dora"), ("model.lora_config.use_dora=true",)),
    **dict.fromkeys(
        ("use_rslora", "rslora", "peft_use_rslora"), ("model.lora_config.use_rslora=true",)
    ),
    **dict.fromkeys(("fsdp", "fsdp2", "fsdp_config", "fully_shard"), ("training.shard=yes",)),
    **dict.fromkeys(("deepspeed", "zero", "zero3"), ("training.shard=yes",)),
    **dict.fromkeys(("gpu", "gpu_id", "gpu_ids", "gpus"), ("cuda_visible_devices",)),
    **dict.fromkeys(("cpu", "use_cpu", "no_cuda"), ("device=cpu",)),
    "cuda": ("device=cuda",),
    **dict.fromkeys(
        ("nproc_per_node", "num_gpus", "n_gpu", "n_gpus", "world_size", "devices"),
        ("num_processes",),
    ),
    **dict.fromkeys(("out", "out_dir", "save_dir", "save_path", "logging_dir"), ("output_dir",)),
    **dict.fromkeys(("overwrite_output_dir", "overwrite", "force", "fresh"), ("new_run",)),
    **dict.fromkeys(("experiment_name", "run", "wandb_name", "wandb_run_name"), ("run_name",)),
    **dict.fromkeys(("max_time", "time_limit", "max_hours"), ("training.deadline",)),
    "dataset_prepared_path": ("cache.directory",),
    **dict.fromkeys(("backup", "place"), ("backup.place",)),
    **{name: (f"training.method={name}",) for name in ("dpo", "orpo", "kto", "grpo", "rloo")},
    **dict.fromkeys(("stage", "trainer", "rl"), ("training.method",)),
    **dict.fromkeys(("reward_funcs", "reward_functions"), ("training.rewards",)),
    **dict.fromkeys(("dpo_beta", "pref_beta", "kl_coef"), ("training.beta",)),
    **dict.fromkeys(("hourly_rate", "cost_per_hour", "price", "gpu_price"), ("price_per_hour",)),
    **merged("elsewhere"),
}

# Other tools' names for values of Temper.
SAME_WORDS = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf"), "adamw"),
    "adamw_bnb_8bit": "adamw_8bit",
    "paged_adamw_32bit": "paged_adamw",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
}

# name -> the message that says what to do; Temper has no such thing.
ABSENT: dict[str, str] = {
    **dict.fromkeys(
        (
            "tensor_parallel",
            "tensor_parallel_size",
            "tp",
            "tp_size",
            "pipeline_parallel",
            "pipeline_parallel_size",
            "pp",
        ),
        "config.no_model_parallel",
    ),
    **dict.fromkeys(
        ("context_parallel", "context_parallel_size", "cp_size", "sequence_parallel"),
        "config.no_context_parallel",
    ),
    "ring_attention": "config.no_context_parallel",
    **dict.fromkeys(("ppo", "rlhf"), "config.no_ppo"),
    **dict.fromkeys(("gguf", "to_gguf", "llama_cpp"), "config.gguf_is_exported"),
    **dict.fromkeys(("mlflow", "comet", "swanlab", "neptune"), "config.no_such_tracker"),
    **dict.fromkeys(("shuffle", "shuffle_dataset"), "config.always_shuffled"),
    "adapter": "config.two_adapters",
    "warmup_ratio": "config.warmup_in_steps",
    **dict.fromkeys(("adam_beta1", "adam_beta2", "adam_epsilon", "eps"), "config.adam_is_fixed"),
    **dict.fromkeys(("per_device_eval_batch_size", "eval_batch_size"), "config.one_batch_size"),
    "do_train": "config.commands_not_switches",
    **dict.fromkeys(("merge_lora", "merge"), "config.lora_is_merged_by_export"),
    **dict.fromkeys(("push_to_hub", "hub_model_id", "hub_repo_id"), "config.push_by_export"),
    "hf_token": "config.token_in_environment",
    **dict.fromkeys(("resume", "continue"), "config.resume_command"),
    **dict.fromkeys(("resume_from_checkpoint", "checkpoint"), "config.resume_checkpoint"),
    "load_best_model_at_end": "config.best_is_kept",
}


def known_elsewhere(name: str) -> str | None:
    """Return advice on another tool's name: Temper's name or an alternative; None if unknown."""
    plain = plain_name(name)
    if plain in ABSENT:
        return phrase(ABSENT[plain])
    if plain in SAME:
        return phrase("config.called_here", settings=as_settings(SAME[plain]))
    return None


def plain_name(name: str) -> str:
    """Return a flag, key or variable name normalized as in this module's tables."""
    return name.strip("-").rpartition(".")[2].replace("-", "_").lower()


def as_settings(settings: tuple[str, ...]) -> str:
    """Write settings as the reader types them: `--lora and --quantization 4bit`."""
    pairs = [setting.partition("=") for setting in settings]
    return " and ".join(format(Setting(canonical(key), value)) for key, _, value in pairs)
