"""Words of other tools: what the same thing is called here, or what to do where it is not here."""

from infrastructure.config.aliases import canonical

# name -> settings of ours, `key` or `key=value`; a name is written with "_", as in a file.
SAME: dict[str, tuple[str, ...]] = {
    "lr": ("training.learning_rate",),
    "train_batch_size": ("training.batch_size",),
    "micro_batch_size": ("training.batch_size",),
    "per_device_train_batch_size": ("training.batch_size",),
    "gradient_accumulation_steps": ("training.gradient_accumulation",),
    "num_train_epochs": ("training.num_epochs",),
    "optim": ("training.optimizer",),
    "lr_scheduler": ("training.scheduler_type",),
    "lr_scheduler_type": ("training.scheduler_type",),
    "bf16": ("training.mixed_precision=bf16",),
    "fp16": ("training.mixed_precision=fp16",),
    "save_steps": ("training.checkpoint_frequency",),
    "save_total_limit": ("training.keep_checkpoints",),
    "eval_steps": ("training.validation_frequency",),
    "logging_steps": ("training.log_frequency",),
    "report_to": ("training.metrics_sinks",),
    "torch_compile": ("training.compile_mode",),
    "max_seq_length": ("data.max_length",),
    "max_seq_len": ("data.max_length",),
    "seq_len": ("data.max_length",),
    "cutoff_len": ("data.max_length",),
    "truncation_mode": ("data.over_length",),
    "excess_length_strategy": ("data.over_length",),
    "sample_packing": ("data.packing",),
    "train_on_inputs": ("data.train_on=all",),
    "assistant_only_loss": ("data.train_on",),
    "completion_only_loss": ("data.train_on",),
    "dataset": ("data.path",),
    "dataset_name": ("data.path",),
    "train_file": ("data.path",),
    "validation_file": ("data.eval_path",),
    "model_name_or_path": ("model.name",),
    "base_model": ("model.name",),
    "torch_dtype": ("model.dtype",),
    "attn_implementation": ("model.attention",),
    "flash_attention": ("model.attention=flash_attention_2",),
    "use_lora": ("model.lora_config",),
    "use_peft": ("model.lora_config",),
    "lora_rank": ("model.lora_config.r",),
    "load_in_4bit": ("model.quantization=4bit",),
    "load_in_8bit": ("model.quantization=8bit",),
    "qlora": ("model.lora_config", "model.quantization=4bit"),
    "use_qlora": ("model.lora_config", "model.quantization=4bit"),
    "nproc_per_node": ("num_processes",),
    "num_gpus": ("num_processes",),
    "push_to_hub": ("backup.place=hf://OWNER/NAME",),
    "hub_model_id": ("backup.place=hf://OWNER/NAME",),
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

_WHOLE_MODELS = (
    "a model is not split over GPUs here: --num-processes trains a whole copy on each, and"
    " --lora --quantization 4bit makes a larger one fit"
)
PREFERENCES = (
    "preference training (DPO and its like) is not here: TRL's trainers do it; temper train learns"
    " answers"
)
GGUF = (
    "a GGUF file is made by llama.cpp, for it alone: temper export writes the model in the Hugging"
    " Face layout, and llama.cpp's convert_hf_to_gguf.py (convert_lora_to_gguf.py for a LoRA)"
    " converts that"
)
# name -> what to do: there is no such thing here.
ABSENT: dict[str, str] = {
    **dict.fromkeys(("fsdp", "fsdp2", "deepspeed", "zero", "zero3"), _WHOLE_MODELS),
    **dict.fromkeys(("tensor_parallel", "pipeline_parallel", "tp", "pp"), _WHOLE_MODELS),
    **dict.fromkeys(("dpo", "orpo", "kto", "grpo", "ppo", "rlhf", "reward"), PREFERENCES),
    **dict.fromkeys(("gguf", "to_gguf", "llama_cpp"), GGUF),
    "qat": (
        "quantization-aware training is not here: --lora --quantization 4bit trains LoRA matrices"
        " on a quantised base"
    ),
    "resume": "temper train-resume goes on with a run",
    "resume_from_checkpoint": "temper train-resume RUN@STEP goes on with a run",
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
