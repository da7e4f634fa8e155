"""Quantization-aware training with torchao: linear layers compute with rounded weights.

The model learns to work well with rounded weights. The output layer and the embeddings are not
rounded.

The forward pass rounds the weights (and, with int8_int4, the inputs). In the backward pass,
gradients ignore the rounding: Jacob et al. 2017, arXiv 1712.05877. The trained weights and their
names are those of the plain model, and so are checkpoints and `final/`.
"""

import logging
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.core.checksums import write_sums
from infrastructure.core.errors import InputError
from infrastructure.core.files import whole_directory
from infrastructure.core.messages import Setting
from infrastructure.core.optional import require
from infrastructure.models.model_inputs import language_model
from infrastructure.models.progress_bars import without_progress_bars
from infrastructure.models.refusals import GROUP_SIZE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_KEPT = 0.1  # of the weights between embeddings and output, such as a router's
_NEEDED_FOR = Setting("model.quantization_aware")


def check(model: torch.nn.Module) -> None:
    """Raise if torchao would not round the weights of all linear layers of the model.

    The model's weights are not read, and may be on the meta device.

    Raises:
        ValueError: layers would not be rounded; the message names them.
    """
    if hasattr(getattr(model, "config", None), "vision_config"):
        raise InputError("models.qat_text_models_only", key=_NEEDED_FOR)
    head = language_model(model).get_output_embeddings()
    num_rounded, kept = 0, Counter[str]()
    for name, module in model.named_modules():
        is_rounded = _is_rounded(module, head)
        if is_rounded and module.in_features % GROUP_SIZE:
            raise InputError(
                "models.qat_row_size",
                key=_NEEDED_FOR,
                name=name,
                width=module.in_features,
                group_size=GROUP_SIZE,
            )
        if module is head or isinstance(module, torch.nn.Embedding):
            continue
        size = sum(p.numel() for p in module.parameters(recurse=False) if p.ndim > 1)
        if is_rounded:
            num_rounded += size
        elif size:
            kept[type(module).__name__] += size
    share = kept.total() / max(1, num_rounded + kept.total())
    if share > MOST_KEPT:
        raise InputError(
            "models.qat_few_linear_layers",
            key=_NEEDED_FOR,
            share=share,
            name=type(model).__name__,
            layer_type=kept.most_common(1)[0][0],
        )


def prepare(model: torch.nn.Module, kind: str) -> None:
    """Replace the linear layers of `model` by layers that round their weights.

    Args:
        kind: the kind of rounding, as in `model.quantization_aware`.

    Raises:
        ValueError: a layer's rows are not a multiple of the group that shares a scale, or most
            weights are in other layers.
        MissingPackageError: torchao is not installed.
    """
    check(model)
    head = language_model(model).get_output_embeddings()
    quantization, qat = _torchao("quantization"), _torchao("quantization.qat")
    quantization.quantize_(
        model,
        qat.QATConfig(_rounding(kind), step="prepare"),
        filter_fn=lambda module, _: _is_rounded(module, head),
    )


def save_rounded(
    plain: Path, directory: Path, kind: str, tokenizer: "PreTrainedTokenizerBase | None"
) -> None:
    """Save a rounded copy of the model in `plain` to `directory`, replacing it if it exists.

    transformers can load the copy if torchao is installed.
    """
    with whole_directory(directory.resolve()) as part:
        write_rounded(plain, part, kind, tokenizer)
        write_sums(part)


def write_rounded(
    plain: Path, part: Path, kind: str, tokenizer: "PreTrainedTokenizerBase | None"
) -> None:
    """Write a rounded copy of the model to a temporary folder; see `save_rounded`."""
    transformers = require("transformers", format(_NEEDED_FOR))
    with without_progress_bars():
        config = transformers.TorchAoConfig(
            _rounding(kind), modules_to_not_convert=["lm_head", "embed_out", "output"]
        )
        rounded = transformers.AutoModelForCausalLM.from_pretrained(
            plain, quantization_config=config, dtype=torch.float32
        )
        rounded.save_pretrained(part)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)


def _is_rounded(module: torch.nn.Module, head: object) -> bool:
    return isinstance(module, torch.nn.Linear) and module is not head


def _rounding(kind: str) -> object:
    quantization, granularity = _torchao("quantization"), _torchao("quantization.granularity")
    group = granularity.PerGroup(GROUP_SIZE)
    four_bits = torch.int4  # type: ignore[attr-defined]
    if kind == "int4":
        return quantization.IntxWeightOnlyConfig(weight_dtype=four_bits, granularity=group)
    return quantization.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=four_bits, weight_granularity=group
    )


def _torchao(name: str) -> Any:
    logging.getLogger("torchao").setLevel(logging.ERROR)  # kernels that this machine lacks
    return require(f"torchao.{name}", format(_NEEDED_FOR))
