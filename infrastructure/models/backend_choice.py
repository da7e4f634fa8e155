"""Choice of the library that loads the model if `model.backend` is `auto`.

Unsloth is chosen on a CUDA GPU if it is installed and supports the model and the run; otherwise
transformers is chosen. The choice comes with a reason for the user.

This module reads only names, files and versions, because nothing that Unsloth patches may be
imported before Unsloth.
"""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import torch

from infrastructure.config.auto import attention_for, trains_from_scratch
from infrastructure.config.merging.contradictions import contradicting
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.error_place import named
from infrastructure.core.errors import MissingPackageError
from infrastructure.core.json_text import json_of
from infrastructure.core.messages import phrase
from infrastructure.core.optional import PIP_LINES, is_installed
from infrastructure.models.saved_model import (
    ModelSource,
    SourceKind,
)
from infrastructure.models.source import (
    find_source,
)
from infrastructure.models.transformers_backend import base_of_lora
from infrastructure.models.unsloth_backend import check_versions, prepare_backend

Backend = Literal["transformers", "unsloth"]
# Model types with Unsloth's own kernels. For any others that it loads, transformers computes.
MODEL_TYPES = (
    *("llama", "mistral", "gemma", "gemma2", "qwen2", "qwen3", "qwen3_moe"),
    *("cohere", "granite", "falcon_h1"),
)
STRATEGIES = ("standard", "finetune")

LONGEST_REASON = 200  # characters of a package's error message


@dataclass(frozen=True)
class BackendChoice:
    """The chosen library, and a sentence for the user about the choice (or None)."""

    backend: Backend
    sentence: str | None = None


def choose_backend(
    model_config: ModelConfig,
    training_config: TrainingConfig,
    device: torch.device,
    num_processes: int = 1,
    began_with: Backend | None = None,
    cache_directory: Path | None = None,
) -> BackendChoice:
    """Choose the library that loads the model. If it is Unsloth, import it now.

    Args:
        began_with: the library that a resumed run began with. None for a new run.
        cache_directory: folder for Unsloth's compiled code.
    """
    configured = model_config.backend if model_config.backend != "auto" else began_with
    if configured is not None:
        is_on_cpu = configured == "unsloth" and device.type == "cpu"
        return BackendChoice(configured, phrase("models.unsloth_on_cpu") if is_on_cpu else None)
    if device.type != "cuda" or trains_from_scratch(model_config):
        return BackendChoice("transformers")
    reason = (
        _not_supported(training_config, model_config, num_processes)
        or _not_usable()
        or _not_importable(model_config, cache_directory)
    )
    if reason is None:
        return BackendChoice(
            "unsloth",
            phrase("models.unsloth_chosen"),
        )
    return BackendChoice("transformers", phrase("models.transformers_chosen", reason=reason))


def _not_supported(
    training: TrainingConfig, model_config: ModelConfig, num_processes: int
) -> str | None:
    """Return the reason why Unsloth does not support this run; None if it does."""
    strategy = training.strategy_for(model_config)
    if strategy not in STRATEGIES:
        return phrase("models.unsloth_strategy_unsupported", strategy=strategy)
    if training.hides_tokens:
        return phrase("models.unsloth_no_masked_diffusion")
    if num_processes > 1:
        return phrase("models.several_processes")
    if model_config.adapter not in ("auto", "standard"):
        return phrase("models.adapter_loads_model", adapter=model_config.adapter)
    if training.gradient_checkpointing and training.gradient_checkpointing_mode != "all":
        return phrase("models.unsloth_own_checkpointing")
    if attention_for(model_config, training) not in ("auto", "sdpa"):
        return phrase("models.unsloth_own_attention")
    sections = SimpleNamespace(model=model_config, training=training)
    if setting := next(contradicting("model.backend=unsloth", sections), None):
        return phrase("models.unsloth_no_setting", setting=setting)
    source = find_source(model_config.name)
    if source.kind not in (SourceKind.HUB, SourceKind.FOLDER, SourceKind.LORA_FOLDER):
        return phrase("models.registered_model", name=model_config.name)
    if model_config.trust_remote_code:
        return phrase("models.model_has_own_code")
    model_type = _model_type(source, model_config)
    if model_type is None:
        return phrase("models.config_unreadable_before_load")
    return (
        None
        if model_type in MODEL_TYPES
        else phrase("models.unsloth_no_kernels", model_type=model_type)
    )


def _model_type(source: ModelSource, model_config: ModelConfig) -> str | None:
    """Return the model type from config.json. For a Hub model, only this file is fetched."""
    try:
        if source.kind is SourceKind.LORA_FOLDER:
            source = base_of_lora(source.folder)
        path = source.folder / "config.json"
        if source.kind is SourceKind.HUB:
            hub = importlib.import_module("huggingface_hub")
            revision = source.revision or model_config.revision
            path = Path(hub.hf_hub_download(source.location, "config.json", revision=revision))
    except (OSError, ValueError):  # loading it reports what is wrong
        return None
    model_type = json_of(path).get("model_type")
    return model_type if isinstance(model_type, str) else None


def _not_usable() -> str | None:
    """Return the reason why Unsloth cannot be imported now; None if it can."""
    if not is_installed("unsloth"):
        return phrase("models.unsloth_not_installed", command=PIP_LINES["unsloth"])
    if "unsloth" not in sys.modules and "transformers" in sys.modules:
        return phrase("models.unsloth_imported_too_late")
    try:
        check_versions()
    except (MissingPackageError, ValueError) as error:
        return str(error)
    return None


def _not_importable(model_config: ModelConfig, cache_directory: Path | None) -> str | None:
    """Import Unsloth, and return the reason if the import fails (such as an old GPU); otherwise
    None.
    """
    try:
        prepare_backend(model_config.model_copy(update={"backend": "unsloth"}), cache_directory)
    except Exception as error:  # from any package that it imports
        return phrase("models.unsloth_import_failed", error=named(error)[:LONGEST_REASON])
    return None
