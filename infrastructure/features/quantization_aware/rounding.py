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

from infrastructure.core.errors import InputError
from infrastructure.core.messages import Setting, phrase
from infrastructure.core.optional import require
from infrastructure.features.quantization_aware.checks import GROUP_SIZE, check_row
from infrastructure.models.model_change import ModelChange, Rounding
from infrastructure.models.model_inputs import language_model
from infrastructure.models.progress_bars import without_progress_bars
from infrastructure.models.refusals import refuse_without_effect
from infrastructure.models.saved_model import ModelSource, SourceKind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_KEPT = 0.1  # of the weights between embeddings and output, such as a router's
_NEEDED_FOR = Setting("model.quantization_aware")


class RoundedLayers(ModelChange):
    """Linear layers that round their weights in the forward pass.

    Args:
        kind: the kind of rounding, as in `model.quantization_aware`.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.rounding = Rounding(kind, bits=4, package="torchao")

    def check_source(self, source: ModelSource, name: str) -> None:
        if source.kind is SourceKind.LORA_FOLDER:
            raise InputError("quantization_aware.with_lora", quantization_aware=self.kind)
        if source.kind in (SourceKind.REGISTERED, SourceKind.REGISTERED_FOLDER):
            reason = phrase("models.not_a_language_model")
            refuse_without_effect("quantization_aware", name, reason)

    def check_layers(self, layers: torch.nn.Module) -> None:
        """Raise if torchao would not round the weights of all linear layers of the model."""
        if hasattr(getattr(layers, "config", None), "vision_config"):
            raise InputError("quantization_aware.text_models_only")
        head = language_model(layers).get_output_embeddings()
        num_rounded, kept = 0, Counter[str]()
        for name, module in layers.named_modules():
            is_rounded = _is_rounded(module, head)
            if is_rounded:
                check_row(name, module.in_features)
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
                "quantization_aware.few_linear_layers",
                share=share,
                name=type(layers).__name__,
                layer_type=kept.most_common(1)[0][0],
            )

    def apply(
        self, model: torch.nn.Module, tokenizer: object, options: object, *, may_grow: bool
    ) -> torch.nn.Module:
        self.check_layers(model)
        head = language_model(model).get_output_embeddings()
        quantization, qat = _torchao("quantization"), _torchao("quantization.qat")
        quantization.quantize_(
            model,
            qat.QATConfig(self._torchao_config(), step="prepare"),
            filter_fn=lambda module, _: _is_rounded(module, head),
        )
        return model

    def write_rounded(
        self, plain: Path, part: Path, tokenizer: "PreTrainedTokenizerBase | None"
    ) -> None:
        transformers = require("transformers", format(_NEEDED_FOR))
        with without_progress_bars():
            config = transformers.TorchAoConfig(
                self._torchao_config(), modules_to_not_convert=["lm_head", "embed_out", "output"]
            )
            rounded = transformers.AutoModelForCausalLM.from_pretrained(
                plain, quantization_config=config, dtype=torch.float32
            )
            rounded.save_pretrained(part)
            if tokenizer is not None:
                tokenizer.save_pretrained(part)

    def _torchao_config(self) -> object:
        quantization, granularity = _torchao("quantization"), _torchao("quantization.granularity")
        group = granularity.PerGroup(GROUP_SIZE)
        four_bits = torch.int4  # type: ignore[attr-defined]
        if self.kind == "int4":
            return quantization.IntxWeightOnlyConfig(weight_dtype=four_bits, granularity=group)
        return quantization.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=four_bits, weight_granularity=group
        )


def change(config: Any) -> RoundedLayers | None:
    """Return the change to the model that `model.quantization_aware` names."""
    kind = config.model.quantization_aware
    return None if kind is None else RoundedLayers(kind)


def _is_rounded(module: torch.nn.Module, head: object) -> bool:
    return isinstance(module, torch.nn.Linear) and module is not head


def _torchao(name: str) -> Any:
    logging.getLogger("torchao").setLevel(logging.ERROR)  # kernels that this machine lacks
    return require(f"torchao.{name}", format(_NEEDED_FOR))
