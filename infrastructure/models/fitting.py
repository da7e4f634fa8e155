"""Checks that a model fits the run, and the model's description for the run's records."""

import logging
from typing import TYPE_CHECKING, cast

import torch

from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonObject, JsonValue
from infrastructure.core.messages import phrase
from infrastructure.models.added_modules import (
    added_modules,
    facts_of_added,
)
from infrastructure.models.lora import (
    adapted_paths,
    count_parameters,
    target_paths,
)
from infrastructure.models.model_inputs import PROJECTOR, inner_model
from infrastructure.models.refusals import refuse_longer_examples

if TYPE_CHECKING:
    from peft import LoraConfig as PeftLora
    from peft import PeftModel
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

logger = logging.getLogger(__name__)


def choose_dtype(name: str, *, trains_all: bool, device: torch.device) -> torch.dtype:
    """Return the dtype of the weights. "auto": fp32 if they train or on a CPU, else 16 bits.

    Trained weights need fp32, because small updates would be rounded away. Mixed precision still
    computes in 16 bits.

    Raises:
        ValueError: fp16 is set for weights that train, which no gradient scaler supports.
    """
    if name == "auto":
        if trains_all or device.type == "cpu":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if trains_all and name == "fp16":
        raise InputError("models.fp16_full_fine_tuning")
    if trains_all and name == "bf16":
        logger.warning(phrase("models.bf16_rounds_updates_away"))
    return DTYPES[name]


def check_length(config: "PreTrainedConfig", max_length: int | None, name: str) -> None:
    """Raise ValueError if `max_length` exceeds the model's number of positions."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if max_length is not None and positions is not None:
        refuse_longer_examples(max_length, positions, name)


def check_vocabulary(num_tokens: int, tokenizer: "PreTrainedTokenizerBase", name: str) -> None:
    """Raise ValueError if the tokenizer has tokens for which the model has no embedding.

    Args:
        num_tokens: number of the model's embeddings.
    """
    largest = max(tokenizer.get_vocab().values())
    if largest >= num_tokens:
        raise InputError(
            "models.tokenizer_larger_than_model", name=name, largest=largest, num_tokens=num_tokens
        )


def check_same_lora(
    model: torch.nn.Module, wanted: LoraConfig | None, folder: str, within: str | None = None
) -> None:
    """Raise ValueError if the configured LoRA differs from the loaded LoRA."""
    if wanted is None:
        return
    has, base = lora_of(model), inner_model(model)
    differing = [
        f"{key}={ours} (there {theirs})"
        for key, ours, theirs in (
            ("r", wanted.r, has.r),
            ("alpha", wanted.alpha, has.lora_alpha),
            ("dropout", wanted.dropout, has.lora_dropout),
            ("use_dora", wanted.use_dora, has.use_dora),
            ("use_rslora", wanted.use_rslora, has.use_rslora),
            ("trains in full", [], sorted({*(has.modules_to_save or ())} - {PROJECTOR})),
            ("rank_pattern", {}, has.rank_pattern or {}),
        )
        if ours != theirs
    ]
    targets = target_paths(base, wanted.target_modules, within=within)
    if targets != adapted_paths(base):
        differing.append(f"target_modules={wanted.target_modules} (there {_leaves(has)})")
    if differing:
        raise InputError(
            "models.lora_settings_differ", folder=folder, differences=", ".join(differing)
        )


def describe(model: torch.nn.Module, config: ModelConfig) -> JsonObject:
    """Return a description of the model as JSON values: name, kind, size, dtypes, LoRA."""
    counts = count_parameters(model)
    is_lora = hasattr(model, "peft_config")
    base = inner_model(model) if is_lora else model
    return {
        "name": config.name,
        "backend": "unsloth" if config.backend == "unsloth" else "transformers",
        "architecture": type(base).__name__,
        "num_parameters": counts.total,
        "num_trainable": counts.trainable,
        "dtype": str(
            next(p.dtype for p in base.parameters() if p.is_floating_point())
        ).removeprefix("torch."),
        "quantization": config.quantization,
        "attention": getattr(getattr(base, "config", None), "_attn_implementation", None),
        "lora": _describe_lora(lora_of(model)) if is_lora else None,
        **describe_added(model),
    }


def describe_added(model: torch.nn.Module) -> JsonObject:
    """Return a description of added modules and the parameter counts; {} if there are none."""
    if not added_modules(model):
        return {}
    counts = count_parameters(model)
    return {
        "extensions": facts_of_added(model),
        "num_parameters": counts.total,
        "num_trainable": counts.trainable,
    }


def lora_of(model: torch.nn.Module) -> "PeftLora":
    """Return the configuration of a PEFT model's LoRA."""
    return cast("PeftLora", cast("PeftModel", model).peft_config["default"])


def _describe_lora(lora: "PeftLora") -> JsonObject:
    ranks: JsonObject = {"rank_pattern": dict(lora.rank_pattern)} if lora.rank_pattern else {}
    return ranks | {
        "r": lora.r,
        "alpha": lora.lora_alpha,
        "dropout": lora.lora_dropout,
        "target_modules": _leaves(lora),
        **_variants(lora),
    }


def _variants(lora: "PeftLora") -> JsonObject:
    """Return the settings of a LoRA that differ from their defaults; {} for an ordinary LoRA."""
    variants: JsonObject = {
        "use_dora": lora.use_dora,
        "use_rslora": lora.use_rslora,
        "init": lora.init_lora_weights if isinstance(lora.init_lora_weights, str) else None,
        "experts": [*sorted({n.rpartition(".")[2] for n in lora.target_parameters or []})],
        "trains_in_full": [*sorted({n.rpartition(".")[2] for n in lora.modules_to_save or []})],
    }
    return {name: value for name, value in variants.items() if value}


def _leaves(lora: "PeftLora") -> JsonValue:
    """Return the last components of the target modules' names, because PEFT may list full paths."""
    targets = lora.target_modules or []
    if isinstance(targets, str):
        return targets
    return [*sorted({target.rpartition(".")[2] for target in targets})]
