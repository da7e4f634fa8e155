"""Words of other tools: what the same thing is called here, or what to do where it is not here."""

from infrastructure.config.aliases import canonical

# name -> settings of ours, `key` or `key=value`; a name is written with "_", as in a file.
SAME: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("lr", "max_lr"), ("training.learning_rate",)),
    "train_batch_size": ("training.batch_size",),
    "micro_batch_size": ("training.batch_size",),
    "per_device_train_batch_size": ("training.batch_size",),
    "per_device_batch_size": ("training.batch_size",),
    "global_batch_size": ("training.batch_size", "training.gradient_accumulation"),
    "auto_find_batch_size": ("training.batch_size=auto",),
    "gradient_accumulation_steps": ("training.gradient_accumulation",),
    **dict.fromkeys(
        ("num_train_epochs", "train_epochs", "n_epochs", "max_epochs"), ("training.num_epochs",)
    ),
    **dict.fromkeys(("steps", "iters", "max_iters", "num_steps"), ("training.max_steps",)),
    "optim": ("training.optimizer",),
    "lr_scheduler": ("training.scheduler_type",),
    "lr_scheduler_type": ("training.scheduler_type",),
    "warmup": ("training.warmup_steps",),
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
    "train_on_inputs": ("data.train_on=all",),
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
            "training_data",
            "input",
        ),
        ("data.path",),
    ),
    **dict.fromkeys(
        ("validation_file", "eval_file", "val_file", "eval_dataset", "val_data", "test_data"),
        ("data.eval_path",),
    ),
    **dict.fromkeys(("dataset_text_field", "text_field"), ("data.text_column",)),
    "template": ("data.chat_template",),
    **dict.fromkeys(
        ("dataloader_num_workers", "preprocessing_num_workers", "workers", "dataset_num_proc"),
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
            "checkpoint_path",
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
    **dict.fromkeys(("use_lora", "use_peft", "peft", "finetuning_type"), ("model.lora_config",)),
    **dict.fromkeys(("lora_rank", "rank", "r"), ("model.lora_config.r",)),
    "alpha": ("model.lora_config.alpha",),
    **dict.fromkeys(("lora_target", "target_modules"), ("model.lora_config.target_modules",)),
    **dict.fromkeys(("load_in_4bit", "int4", "nf4"), ("model.quantization=4bit",)),
    **dict.fromkeys(("load_in_8bit", "int8"), ("model.quantization=8bit",)),
    **dict.fromkeys(("quantize", "quantization_bit", "bits", "bnb"), ("model.quantization",)),
    "qlora": ("model.lora_config", "model.quantization=4bit"),
    "use_qlora": ("model.lora_config", "model.quantization=4bit"),
    **dict.fromkeys(("use_dora", "dora"), ("model.lora_config.use_dora=true",)),
    **dict.fromkeys(("use_rslora", "rslora"), ("model.lora_config.use_rslora=true",)),
    **dict.fromkeys(("loftq", "pissa"), ("model.lora_config.init_lora_weights",)),
    "qat": ("model.quantization_aware",),
    **dict.fromkeys(("fsdp", "fsdp2", "fully_shard"), ("training.shard=yes",)),
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
    **dict.fromkeys(("experiment_name", "run"), ("run_name",)),
    **dict.fromkeys(("max_time", "time_limit", "max_hours"), ("training.deadline",)),
    "dataset_prepared_path": ("cache.directory",),
    **dict.fromkeys(("backup", "place"), ("backup.place",)),
    **{name: (f"training.method={name}",) for name in ("dpo", "orpo", "kto", "grpo", "rloo")},
    **dict.fromkeys(("stage", "trainer", "rl"), ("training.method",)),
    **dict.fromkeys(("reward_funcs", "reward_functions"), ("training.rewards",)),
    **dict.fromkeys(("teacher_model", "teacher_model_name_or_path"), ("training.teacher",)),
    **dict.fromkeys(("dpo_beta", "pref_beta", "kl_coef"), ("training.beta",)),
    **dict.fromkeys(("hourly_rate", "cost_per_hour", "price", "gpu_price"), ("price_per_hour",)),
}

# What other tools call a value of ours.
SAME_WORDS = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf"), "adamw"),
    "adamw_bnb_8bit": "adamw_8bit",
    "paged_adamw_32bit": "paged_adamw",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
}

# The sentences name settings by their keys; a command line spells them as flags (`languages`).
_WHOLE_LAYERS = (
    "a layer is not cut over GPUs here (tensor and pipeline parallelism), which pays where one is"
    " larger than a GPU: num_processes with training.shard = yes spreads weights, gradients and"
    " optimizer, layer by layer"
)
_WHOLE_ROWS = (
    "a row is not cut over GPUs here (context parallelism): nothing in PyTorch keeps packed rows"
    " apart then; training.gradient_checkpointing and training.shard = yes make room for long ones"
)
PREFERENCES = "training.method = dpo (or kto, orpo, reward) learns from such pairs, by TRL"
_PPO = (
    "PPO is not here: training.method = grpo and training.method = rloo learn from rewards, by TRL"
)
GGUF = (
    "a GGUF file is made of a trained model: temper export RUN FOLDER --format gguf, by llama.cpp's"
    " convert_hf_to_gguf.py"
)
_OTHER_TRACKERS = (
    "no sink of that name is built in: training.metrics_sinks takes jsonl, csv, tensorboard,"
    " trackio, wandb, or the address of a sink of your own (module:Class)"
)
_SHARED = (
    "temper export RUN --push-to-hub OWNER/NAME shares a trained model; what a training can go on"
    " from is copied to backup.place = hf://buckets/OWNER/NAME meanwhile"
)
_SHUFFLED = "training data is always shuffled, by training.seed"
_BEST = (
    "the best checkpoint by training.best_metric is kept (training.keep_best): temper export"
    " RUN@best FOLDER gives that model"
)
_RESUMED = "temper train-resume RUN@STEP goes on with a run"
# name -> what to do: there is no such thing here.
ABSENT: dict[str, str] = {
    **dict.fromkeys(("tensor_parallel", "tensor_parallel_size", "tp", "tp_size"), _WHOLE_LAYERS),
    **dict.fromkeys(("pipeline_parallel", "pipeline_parallel_size", "pp"), _WHOLE_LAYERS),
    **dict.fromkeys(("context_parallel", "context_parallel_size", "cp_size"), _WHOLE_ROWS),
    **dict.fromkeys(("sequence_parallel", "ring_attention"), _WHOLE_ROWS),
    **dict.fromkeys(("ppo", "rlhf"), _PPO),
    **dict.fromkeys(("gguf", "to_gguf", "llama_cpp"), GGUF),
    **dict.fromkeys(("mlflow", "comet", "swanlab", "neptune"), _OTHER_TRACKERS),
    **dict.fromkeys(("shuffle", "shuffle_dataset"), _SHUFFLED),
    "warmup_ratio": (
        "warm-up is counted in steps, not in a share: give training.warmup_steps, such as 30 of"
        " 1,000"
    ),
    **dict.fromkeys(
        ("adam_epsilon", "eps"), "AdamW's epsilon is fixed here; training.adam_beta2 is not"
    ),
    **dict.fromkeys(
        ("per_device_eval_batch_size", "eval_batch_size"),
        "held-out rows are measured in batches of training.batch_size",
    ),
    "do_train": "temper train trains; temper train-eval measures",
    **dict.fromkeys(
        ("merge_lora", "merge"),
        "a trained LoRA is saved as one: temper export RUN FOLDER --as merged merges it",
    ),
    **dict.fromkeys(("push_to_hub", "hub_model_id", "hub_repo_id"), _SHARED),
    "hf_token": "the token is never a setting: set HF_TOKEN in the environment",
    **dict.fromkeys(("resume", "continue"), "temper train-resume goes on with a run"),
    "resume_from_checkpoint": _RESUMED,
    "checkpoint": _RESUMED,
    "load_best_model_at_end": _BEST,
}


def plain_name(name: str) -> str:
    """The name of a flag, key or variable, as the tables here spell it."""
    return name.strip("-").rpartition(".")[2].replace("-", "_").lower()


def as_keys(settings: tuple[str, ...]) -> str:
    """As a file spells them: `model.lora_config: true and model.quantization: 4bit`."""
    pairs = [setting.partition("=") for setting in settings]
    if len(pairs) == 1 and not pairs[0][2]:
        return repr(pairs[0][0])
    return " and ".join(f"{canonical(key)}: {value or 'true'}" for key, _, value in pairs)
