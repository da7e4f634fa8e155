"""LoRA adapters, created by PEFT, and information that follows from parameter names.

Method: Hu et al. 2021, arXiv 2106.09685. The base is frozen. LoRA matrices are stored in fp32
whatever the base's dtype, so that small updates are not rounded away. Variants, by PEFT: DoRA
(2402.09353), rsLoRA (2312.03732).

The experts of a mixture of experts are one parameter with three dimensions, (experts, out, in).
PEFT adds matrices of rank r to each expert's part. Routers are frozen.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.core.errors import InputError
from infrastructure.core.messages import Setting, phrase
from infrastructure.core.optional import require
from infrastructure.models.flops import num_weights
from infrastructure.models.model_inputs import inner_model, language_model

HEAD_LAYER = 1_000_000
NAMES_OF_OLD_EXPERTS = ("gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")
_BLOCK = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d+)\.")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output|score)\.")
_EMBEDDING = re.compile(r"(?:^|\.)(?:wte|wpe|\w*embed\w*)\.")


class ParameterCounts(NamedTuple):
    """The numbers of all and of trainable weights of a model. A quantized weight counts as one
    weight.
    """

    total: int
    trainable: int


def apply_lora(
    model: torch.nn.Module,
    lora_config: LoraConfig,
    within: str | None = None,
    in_full: Sequence[str] = (),
) -> torch.nn.Module:
    """Freeze `model` and add LoRA matrices to its linear layers.

    The matrices are initialized with torch's global random generator. Seed it before the call.

    Args:
        within: the name of the part of the model whose layers get matrices. None: all.
        in_full: names of modules that are trained completely, without LoRA, because their weights
            are new.

    Raises:
        ValueError: a target module is not a linear layer of this model. The text lists those that
            exist.
    """
    peft = require("peft", "model.lora_config")
    arguments = peft_arguments(model, lora_config, within, in_full)
    with no_words_on_ties():
        tuned: torch.nn.Module = peft.get_peft_model(
            model,
            peft.LoraConfig(task_type="CAUSAL_LM", **arguments),
            # the version of a Hub model that these matrices belong to
            revision=getattr(getattr(model, "config", None), "_commit_hash", None),
        )
    return tuned


@contextmanager
def no_words_on_ties() -> Iterator[None]:
    """Hide PEFT's warning about LoRA on a head with tied embeddings, while the context lasts.

    `merge_lora` handles that case.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*tie_word_embeddings")
        yield


def merge_lora(model: torch.nn.Module) -> torch.nn.Module:
    """Merge LoRA into its base model, and return the base model.

    If LoRA is on a head with tied embeddings, the head first gets its own weights, because the LoRA
    does not change the embedding.
    """
    tuned: Any = model
    base: Any = inner_model(model)
    head: Any = base.get_output_embeddings()
    plain, embeddings = getattr(head, "base_layer", head), base.get_input_embeddings()
    embeddings = getattr(embeddings, "base_layer", embeddings)
    if plain is not head and plain.weight is embeddings.weight:
        plain.weight = torch.nn.Parameter(plain.weight.detach().clone(), requires_grad=False)
        for config in {id(c): c for c in (base.config, base.config.get_text_config())}.values():
            config.tie_word_embeddings = False
    merged: torch.nn.Module = tuned.merge_and_unload(safe_merge=True)
    return merged


def peft_arguments(
    model: torch.nn.Module,
    lora_config: LoraConfig,
    within: str | None = None,
    in_full: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the arguments of PEFT's LoraConfig, except for the task type.

    The weights of `model` are not read, and may be on the meta device.

    Raises:
        ValueError: as for `apply_lora`.
    """
    if lora_config.target_modules != "all-linear":
        check_target_modules(model, lora_config.target_modules)
    return {
        "r": lora_config.r,
        "lora_alpha": lora_config.alpha,
        "lora_dropout": lora_config.dropout,
        # GPT-2's Conv1D is a linear layer with a transposed weight
        "fan_in_fan_out": any(type(module).__name__ == "Conv1D" for module in model.modules()),
        "use_dora": lora_config.use_dora,
        "use_rslora": lora_config.use_rslora,
        **_targets_for_peft(model, lora_config, within, in_full),
    }


def _paths_within(model: torch.nn.Module, lora_config: LoraConfig, within: str | None) -> set[str]:
    targets = lora_config.target_modules
    paths = target_paths(model, targets, within=within)
    if within is not None and not paths:
        raise InputError("models.lora_targets_outside_language", targets=targets)
    return paths


def _targets_for_peft(
    model: torch.nn.Module,
    lora_config: LoraConfig,
    within: str | None,
    in_full: Sequence[str] = (),
) -> dict[str, object]:
    """Return PEFT's arguments about which parts of `model` get LoRA.

    In a mixture of experts, every layer is given by its full name, because before transformers 5
    PEFT interprets some names ("down_proj") as those of experts and leaves out dense layers with
    the same name.

    Raises:
        ValueError: PEFT has no such LoRA for experts.
    """
    experts = set(expert_parameters(model))
    if not experts:
        if within is None and not in_full:
            return {"target_modules": lora_config.target_modules}
        paths = _paths_within(model, lora_config, within)
        return {"target_modules": _outside(paths, in_full), "modules_to_save": [*in_full] or None}
    paths = {*_outside(_paths_within(model, lora_config, within), in_full)}
    as_parameters = {f"{p}.weight" for p in paths - experts if _leaf(p) in NAMES_OF_OLD_EXPERTS}
    as_modules = {p for p in paths - experts if _leaf(p) not in NAMES_OF_OLD_EXPERTS}
    as_parameters |= paths & experts
    for name, value in (
        ("dropout", lora_config.dropout),
        ("use_dora", lora_config.use_dora),
    ):
        if value and as_parameters:
            names = sorted({_leaf(path.removesuffix(".weight")) for path in as_parameters})
            raise InputError(
                "models.lora_option_on_experts",
                name=Setting(f"model.lora_config.{name}"),
                layers=", ".join(names),
                model=type(model).__name__,
            )
    return {
        "target_modules": sorted(as_modules),
        "target_parameters": sorted(as_parameters) or None,
        "modules_to_save": [*in_full] or None,
    }


def _outside(paths: set[str], modules: Sequence[str]) -> list[str]:
    return sorted(p for p in paths if not any(f".{m}." in f".{p}." for m in modules))


def check_target_modules(model: torch.nn.Module, names: list[str]) -> None:
    """Raise ValueError unless every name is the name of a linear layer.

    PEFT ignores an unknown name in a list that also has known ones, so a layer with a misspelled
    name would silently not train.
    """
    there = linear_paths(model) | set(expert_parameters(model))
    known = sorted({path.rpartition(".")[2] for path in there})
    wrong = [name for name in names if not any(_is_called(path, name) for path in there)]
    if wrong or not names:
        what = (
            phrase("models.not_a_linear_layer", layer=wrong[0])
            if wrong
            else phrase("models.lora_targets_empty")
        )
        raise InputError(
            "models.lora_targets_invalid",
            problem=what,
            name=type(model).__name__,
            layers=", ".join(known),
        )


def target_paths(
    model: torch.nn.Module, targets: str | list[str], *, within: str | None = None
) -> set[str]:
    """Return the full names of the layers and expert weights to which `targets` refers.

    Args:
        targets: "all-linear" or names.
        within: the name of the part of the model to search. None: the whole model.
    """
    paths, of_experts = linear_paths(model), set(expert_parameters(model))
    if within is not None:
        paths = {path for path in paths if path.startswith(f"{within}.")}
        of_experts = {path for path in of_experts if path.startswith(f"{within}.")}
    if targets == "all-linear":
        head = language_model(model).get_output_embeddings()
        return {path for path in paths if model.get_submodule(path) is not head} | of_experts
    return {p for p in paths | of_experts if any(_is_called(p, name) for name in targets)}


def adapted_paths(model: torch.nn.Module) -> set[str]:
    """Return the full names of the layers and expert weights that have LoRA matrices."""
    paths = set()
    for path, module in model.named_modules():
        if len(getattr(module, "lora_A", ())):  # PEFT: one per LoRA name
            name = getattr(module, "parameter_name", "weight")
            plain = path.replace(".base_layer", "")
            paths.add(plain if name == "weight" else f"{plain}.{name}")
    return paths


def expert_parameters(model: torch.nn.Module) -> list[str]:
    """Return the full names of weights that contain all experts of a layer (LoRA or not)."""
    return [
        name.replace(".base_layer", "")
        for name, parameter in model.named_parameters()
        if parameter.ndim == 3 and ".experts." in name and ".lora_" not in name
    ]


def linear_paths(model: torch.nn.Module) -> set[str]:
    """Return the full names of the linear layers, with LoRA or without."""
    paths = {name for name, module in model.named_modules() if _is_linear(module)}
    return {path.removesuffix(".base_layer") for path in paths if ".lora_" not in path}


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def _is_called(path: str, name: str) -> bool:
    return f".{path}".endswith(f".{name}")


def _is_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"


def count_parameters(model: torch.nn.Module) -> ParameterCounts:
    """Count the weights of a model, and the trainable weights among them."""
    sizes = [(num_weights(p), p.requires_grad) for p in model.parameters()]
    return ParameterCounts(sum(n for n, _ in sizes), sum(n for n, trains in sizes if trains))


def layer_of(name: str) -> int:
    """Return a parameter's distance from the input: 0 for embeddings, k + 1 for block k.

    The final norm and the head have the distance `HEAD_LAYER`, which exceeds any number of blocks.
    An output layer that shares its weight with the embedding counts as the embedding. This works
    with the names of Llama-like and GPT-2-like models, with or without the prefixes of PEFT and
    torch.compile.
    """
    block = _BLOCK.search(name)
    if block:
        return int(block.group(1)) + 1
    is_embedding = _EMBEDDING.search(name) and not _HEAD.search(name)
    return 0 if is_embedding else HEAD_LAYER
