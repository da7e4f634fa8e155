"""Block-wise training: groups of layers train one after another, or each with its own loss."""

from infrastructure.core.features import Feature

_HERE = "infrastructure.features.stackwise"
# The flag of each of these settings begins with `--stack-`, or is its plain name.
_EITHER = """
    mode block_size local_loss reconstruct_weight end_to_end_scope
    time_step_masking num_time_steps time_step_bins time_step_mask_fractions
    time_interpretation corruption mask_weighting store_all_time_steps
    time_step_cache_size backbone_quantized adapters_full_precision
"""
# These have no plain flag: `--qlora-rank` would be taken for LoRA on a quantized model.
_ONLY = """
    cache_activations cache_dtype cache_size cache_mode cache_storage cache_dir
    quantization_type qlora_rank qlora_alpha qlora_dropout qlora_lr qlora_strategy
    qlora_ranks
"""
_SPELLED = {
    "quantization_enabled": "--stack-quantization",
    "qlora_enabled": "--stack-qlora",
    "qlora_progressive_enabled": "--stack-qlora-progressive",
}


def _dashed(name: str) -> str:
    return name.replace("_", "-")


FEATURE = Feature(
    name="stackwise",
    fields={"training": f"{_HERE}.config:StackwiseFields"},
    flags={
        **{f"training.{n}": (f"--stack-{_dashed(n)}", f"--{_dashed(n)}") for n in _EITHER.split()},
        **{f"training.{n}": (f"--stack-{_dashed(n)}",) for n in _ONLY.split()},
        **{f"training.{n}": (flag,) for n, flag in _SPELLED.items()},
    },
    aliases={"training.qlora.": "training.qlora_", "qlora.": "training.qlora_"},
    plugins={
        "temper.strategies": {
            "progressive": f"{_HERE}.training.strategy:StackwiseStrategy",
            "end_to_end": f"{_HERE}.training.strategy:StackwiseStrategy",
        }
    },
    model_change=f"{_HERE}.training.mask_token:change",
    contradictions=f"{_HERE}.checks:CONTRADICTIONS",
    added_weights=f"{_HERE}.checks:ADDED_WEIGHTS",
    facts={"by_stacks": f"{_HERE}.checks:by_stacks"},
    advice=f"{_HERE}.checks:advice",
    objective=f"{_HERE}.training.masking:masked_objective",
    report=(f"{_HERE}.report:stack_section",),
    live=(f"{_HERE}.report:stack_section",),
    folders=("training.cache_dir",),
    run_files=("stackwise.json",),
    outputs={"stacks": "stackwise.path_stacks", "rack": "stackwise.path_rack"},
    names={
        "ProgressiveConfig": f"{_HERE}.config",
        "UnifiedTrainer": f"{_HERE}.training.unified_trainer",
    },
)
