"""LoRA by PEFT, and what is counted and ordered by parameter names. No training here.

Method: Hu et al. 2021, arXiv 2106.09685. The base is frozen; LoRA matrices are held in fp32
whatever the base's format, so that small updates are not rounded away.
"""

import math
import re
from typing import TYPE_CHECKING, NamedTuple

import torch

from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.core.optional import require
from infrastructure.training.models.model_inputs import language_model

if TYPE_CHECKING:
    pass

HEAD_LAYER = 1_000_000
_BLOCK = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d+)\.")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output|score)\.")
_EMBEDDING = re.compile(r"(?:^|\.)(?:wte|wpe|\w*embed\w*)\.")


class ParameterCounts(NamedTuple):
    """Numbers of weights; a quantised weight counts as one, however few bits it has."""

    total: int
    trainable: int


def apply_lora(model: torch.nn.Module, lora_config: LoraConfig) -> torch.nn.Module:
    """Freeze `model` and put LoRA matrices beside its linear layers.

    The matrices come from torch's global generator: seed it before.

    Raises:
        ValueError: a target module is no linear layer of this model; lists those there are.
    """
    peft = require("peft", "model.lora_config")
    targets = lora_config.target_modules
    if targets != "all-linear":
        check_target_modules(model, targets)
    return peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=lora_config.r,
            lora_alpha=lora_config.alpha,
            lora_dropout=lora_config.dropout,
            target_modules=targets,
            fan_in_fan_out=_has_transposed_weights(model),
            task_type="CAUSAL_LM",
        ),
        # which version of a hub model these matrices belong to
        revision=getattr(getattr(model, "config", None), "_commit_hash", None),
    )


def check_target_modules(model: torch.nn.Module, names: list[str]) -> None:
    """Raise ValueError unless every name is a linear layer; PEFT ignores a wrong one beside a right
    one, and that layer would silently not train."""
    there = linear_paths(model)
    known = sorted({path.rpartition(".")[2] for path in there})
    wrong = [name for name in names if not any(_is_called(path, name) for path in there)]
    if wrong or not names:
        what = f"{wrong[0]!r} is no linear layer" if wrong else "the list is empty; it needs a name"
        raise ValueError(
            f"model.lora_config.target_modules: {what} of {type(model).__name__}"
            f' (there are: {", ".join(known)}; or "all-linear")'
        )


def target_paths(model: torch.nn.Module, targets: str | list[str]) -> set[str]:
    """The full names of the layers that `targets` ("all-linear" or names) means in `model`."""
    paths = linear_paths(model)
    if targets == "all-linear":
        head = language_model(model).get_output_embeddings()
        return {path for path in paths if model.get_submodule(path) is not head}
    return {path for path in paths if any(_is_called(path, name) for name in targets)}


def adapted_paths(model: torch.nn.Module) -> set[str]:
    """The full names of the layers that have LoRA matrices beside them."""
    return {path for path, module in model.named_modules() if hasattr(module, "lora_A")}


def linear_paths(model: torch.nn.Module) -> set[str]:
    """The full names of the linear layers, whether or not LoRA is beside them already."""
    paths = {name for name, module in model.named_modules() if _is_linear(module)}
    return {path.removesuffix(".base_layer") for path in paths if ".lora_" not in path}


def _is_called(path: str, name: str) -> bool:
    return f".{path}".endswith(f".{name}")


def _is_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"


def _has_transposed_weights(model: torch.nn.Module) -> bool:
    """GPT-2's Conv1D is a linear layer that stores its weight transposed."""
    return any(type(module).__name__ == "Conv1D" for module in model.modules())


def count_parameters(model: torch.nn.Module) -> ParameterCounts:
    """How many weights there are and how many train."""
    sizes = [(_num_weights(p), p.requires_grad) for p in model.parameters()]
    return ParameterCounts(sum(n for n, _ in sizes), sum(n for n, trains in sizes if trains))


def _num_weights(parameter: torch.nn.Parameter) -> int:
    """bitsandbytes packs two 4-bit weights in a byte and keeps the true shape beside it."""
    quant_state = getattr(parameter, "quant_state", None)
    return math.prod(quant_state.shape) if quant_state is not None else parameter.numel()


def layer_of(name: str) -> int:
    """How far from the input a parameter lies: embeddings 0, block k is k + 1, the rest on top.

    The final norm and the head are `HEAD_LAYER`, above any number of blocks. Reads the names of
    Llama-like and GPT-2-like models, with or without PEFT's and torch.compile's prefixes. An
    output layer tied to the embedding is the embedding.
    """
    block = _BLOCK.search(name)
    if block:
        return int(block.group(1)) + 1
    is_embedding = _EMBEDDING.search(name) and not _HEAD.search(name)
    return 0 if is_embedding else HEAD_LAYER
