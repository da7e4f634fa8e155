"""Loading of models by Unsloth: with its kernels on a GPU, as plain transformers on a CPU.

Importing Unsloth patches transformers, so `prepare_backend` must run before anything else imports
transformers. Unsloth is kept from sending usage statistics. Its compiled code is stored in the
cache directory, and its output goes to the log. It never gets a token as an argument, because it
would write the token to disk.

Limits on a CPU: no 8-bit. Tested there with 2026.10.9. The GPU path has not been tested yet.
"""

import contextlib
import importlib.metadata
import io
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from packaging.requirements import Requirement
from packaging.version import Version

from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.core import cache_folder
from infrastructure.core.errors import InputError, MissingPackageError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import PIP_LINES, is_installed, require
from infrastructure.models.lora import (
    check_target_modules,
    expert_parameters,
    target_paths,
)
from infrastructure.models.progress_bars import download_bars_in_a_terminal
from infrastructure.models.quantization import quantized_layers
from infrastructure.models.saved_model import (
    ModelSource,
)
from infrastructure.models.transformers_backend import LoadOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The first release that trains without a GPU.
MIN_VERSION = "2026.10.9"
# For a model that is loaded for inspection, not for training.
DEFAULT_MAX_LENGTH = 2048
PATCHED_PACKAGES = ("bitsandbytes", "datasets", "peft", "torch", "transformers", "trl")

logger = logging.getLogger(__name__)


def prepare_backend(model_config: ModelConfig, cache_directory: Path | None = None) -> None:
    """Import Unsloth now if the configuration selects it; otherwise do nothing.

    Call this before anything imports transformers, trl or peft.

    Args:
        cache_directory: folder for Unsloth's compiled code; must be on a local disk, not on a
            mounted drive. None: Temper's cache.

    Raises:
        MissingPackageError: unsloth is not installed.
        ValueError: an installed package is outside the version bounds that unsloth declares, or the
            configuration sets another attention than Unsloth's own.
    """
    if model_config.backend != "unsloth":
        return
    if model_config.attention != "auto":
        _refuse_attention(model_config.attention)
    check_versions()
    cache = cache_folder.cache_directory(cache_directory)
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(cache / "unsloth_compiled"))
    os.environ.setdefault("UNSLOTH_RETURN_LOGITS", "1")
    if "unsloth" not in sys.modules and "transformers" in sys.modules:
        logger.warning(phrase("models.unsloth_patches_incomplete"))
    with prints_to_log():
        require("unsloth", "model.backend=unsloth")


def check_versions() -> None:
    """Check installed packages against the version bounds declared by the installed unsloth.

    Unsloth is installed without its dependencies, so the installer has not checked them.

    Raises:
        MissingPackageError: unsloth or unsloth_zoo is not installed.
        ValueError: a package is outside the bounds.
    """
    for package in ("unsloth", "unsloth_zoo"):
        if not is_installed(package):
            raise MissingPackageError(
                "models.unsloth_package_missing",
                package=package,
                command=PIP_LINES["unsloth"],
            )
    version = importlib.metadata.version("unsloth")
    if Version(version) < Version(MIN_VERSION):
        raise InputError("models.unsloth_too_old", version=version, command=PIP_LINES["unsloth"])
    for requirement in map(Requirement, importlib.metadata.requires("unsloth") or []):
        _check_requirement(requirement, version)


def _check_requirement(requirement: Requirement, unsloth_version: str) -> None:
    applies = requirement.marker is None or requirement.marker.evaluate({"extra": "huggingface"})
    if requirement.name not in PATCHED_PACKAGES or not applies:
        return
    installed = importlib.metadata.version(requirement.name)
    if not requirement.specifier.contains(installed, prereleases=True):
        raise InputError(
            "models.unsloth_incompatible",
            unsloth_version=unsloth_version,
            package=requirement.name,
            installed=installed,
            specifier=requirement.specifier,
        )


@contextlib.contextmanager
def prints_to_log() -> Iterator[None]:
    """Redirect Unsloth's output to the log, at level DEBUG, while the context lasts."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        for line in filter(None, map(str.strip, printed.getvalue().splitlines())):
            logger.debug("%s", line)


def load_unsloth(
    source: ModelSource,
    options: LoadOptions,
    *,
    max_length: int | None,
    train_all: bool,
    gradient_checkpointing: bool,
) -> tuple[torch.nn.Module, "PreTrainedTokenizerBase"]:
    """Load model and tokenizer with `FastLanguageModel.from_pretrained`, including a saved LoRA.

    Raises:
        ValueError: Unsloth would silently ignore one of the options, or cannot load the model.
    """
    _refuse_what_it_would_ignore(options)
    unsloth = require("unsloth", "model.backend=unsloth")
    with prints_to_log(), download_bars_in_a_terminal():
        try:
            model, tokenizer = unsloth.FastLanguageModel.from_pretrained(
                model_name=source.location,
                max_seq_length=max_length or DEFAULT_MAX_LENGTH,
                dtype=options.dtype,
                load_in_4bit=options.quantization == "4bit",
                load_in_8bit=options.quantization == "8bit",
                full_finetuning=train_all,
                trust_remote_code=options.trust_remote_code,
                revision=options.revision,
                use_exact_model_name=True,  # else it may use another repository for the base
                use_gradient_checkpointing="unsloth" if gradient_checkpointing else False,
            )
        except (OSError, ValueError, RuntimeError, NotImplementedError) as error:
            reason = " ".join(str(error).split())[:300]
            raise InputError(
                "models.unsloth_cannot_load", location=source.location, reason=reason
            ) from error
    _check_loaded(model, options)
    return model, tokenizer


def _refuse_what_it_would_ignore(options: LoadOptions) -> None:
    if options.quantization == "8bit" and options.device.type == "cpu":
        raise InputError("models.unsloth_8bit_on_cpu")
    if options.attention is not None:
        _refuse_attention(options.attention)


def _refuse_attention(attention: str) -> None:
    if attention != "sdpa":
        raise InputError("models.unsloth_chooses_attention", attention=attention)


def _check_loaded(model: torch.nn.Module, options: LoadOptions) -> None:
    device = next(model.parameters()).device
    if device.type != options.device.type:
        raise InputError("models.unsloth_device_differs", device=options.device, actual=device)
    if options.quantization is not None and not quantized_layers(model):
        raise InputError("models.unsloth_not_quantized", quantization=options.quantization)


def check_unsloth_lora(model: torch.nn.Module, lora_config: LoraConfig) -> None:
    """Raise if Unsloth does not support a LoRA for these layers. No weights are read.

    Raises:
        ValueError: a target module is not a linear layer of this model (the message lists the
            linear layers), or experts would get LoRA matrices.
    """
    if lora_config.target_modules != "all-linear":
        check_target_modules(model, lora_config.target_modules)
    if target_paths(model, lora_config.target_modules) & {*expert_parameters(model)}:
        raise InputError("models.unsloth_lora_on_experts", name=type(model).__name__)


def apply_unsloth_lora(
    model: torch.nn.Module,
    lora_config: LoraConfig,
    *,
    seed: int,
    gradient_checkpointing: bool,
) -> torch.nn.Module:
    """Add LoRA with `FastLanguageModel.get_peft_model`.

    Raises:
        ValueError: as for `check_unsloth_lora`.
    """
    check_unsloth_lora(model, lora_config)
    unsloth = require("unsloth", "model.backend=unsloth")
    paths = target_paths(model, lora_config.target_modules)
    names = sorted({path.rpartition(".")[2] for path in paths})
    with prints_to_log():
        return unsloth.FastLanguageModel.get_peft_model(
            model,
            r=lora_config.r,
            target_modules=names,
            lora_alpha=lora_config.alpha,
            lora_dropout=lora_config.dropout,
            bias="none",
            use_gradient_checkpointing="unsloth" if gradient_checkpointing else False,
            random_state=seed,
        )
