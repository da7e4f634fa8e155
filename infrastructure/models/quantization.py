"""Base weights in 4 or 8 bits by bitsandbytes, for training LoRA on top of them (QLoRA).

Method: Dettmers et al. 2023, arXiv 2305.14314: NF4 with double quantization. The frozen norms and
embeddings are stored in the compute dtype: a wider dtype would have no benefit, because norms
compute in fp32 anyway. This also works on a CPU (see `keep_trainable_layout`).
"""

import logging
from collections.abc import Sequence
from typing import Any

import torch

from infrastructure.core.lookup import look_up
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require

# bitsandbytes' CPU kernels need rows of a multiple of this many weights
MIN_CPU_WIDTH = 64
CPU_ROWS = 32  # and a multiple of this many rows
_LAYERS = ("Linear4bit", "Linear8bitLt")


def quantization_config(kind: str, compute_dtype: torch.dtype) -> object:
    """Return the BitsAndBytesConfig for "4bit" or "8bit".

    Raises:
        MissingPackageError: bitsandbytes is not installed.
        ValueError: `kind` is another value.
    """
    require("bitsandbytes", f"model.quantization={kind!r}")
    transformers = require("transformers", f"model.quantization={kind!r}")
    # LLM.int8 computes in fp16 by design and logs that for every layer of every forward pass
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    options: dict[str, dict[str, object]] = {
        "4bit": {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
            "bnb_4bit_compute_dtype": compute_dtype,
        },
        "8bit": {"load_in_8bit": True},
    }
    return transformers.BitsAndBytesConfig(**look_up("quantization", kind, options))


def quantized_layers(model: torch.nn.Module) -> list[object]:
    """Return the layers whose weights are quantized. Empty for an ordinary model."""
    # PEFT's wrappers have the names of the layers that they wrap, but are not linear layers
    linear = (module for module in model.modules() if isinstance(module, torch.nn.Linear))
    return [module for module in linear if type(module).__name__ in _LAYERS]


def layers_not_in_blocks(model: torch.nn.Module) -> list[str]:
    """Return the linear layers whose size bitsandbytes' 4-bit CPU kernel does not support.

    At the first forward pass it would fail with "N must be divisible by block_n".
    """
    output = getattr(model, "get_output_embeddings", lambda: None)()
    linear = (
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not output
    )
    return [
        name
        for name, layer in linear
        if layer.out_features % CPU_ROWS or layer.in_features % MIN_CPU_WIDTH
    ]


def plain_weights(model: torch.nn.Module) -> torch.nn.Module:
    """Replace quantized layers by fp32 layers with the dequantized weights.

    The resulting model computes the same, and can be merged and saved.
    """
    plain: Any = model
    plain = plain.dequantize()
    plain._weight_conversions = None  # of quantized layers, which no longer exist
    whole: torch.nn.Module = plain.float()
    return whole


def note_on_experts(experts: Sequence[torch.Tensor], kind: str) -> str:
    """Return a note for the user that weights of experts are not quantized."""
    num_weights = sum(parameter.numel() for parameter in experts)
    return phrase(
        "models.experts_not_quantized",
        quantized_bits=kind.removesuffix("bit"),
        num_weights=num_weights / 1000000.0,
        bits=torch.finfo(experts[0].dtype).bits,
    )


def keep_trainable_layout(model: torch.nn.Module) -> None:
    """Keep bitsandbytes from repacking weights for its AVX512-BF16 inference kernel on CPUs.

    Repacking happens in place, on the first forward pass in eval mode. The backward passes of later
    steps would read the repacked bytes as ordinary weights, so one evaluation would silently make
    the rest of the run wrong (bitsandbytes 0.50).
    """
    for layer in quantized_layers(model):
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False
