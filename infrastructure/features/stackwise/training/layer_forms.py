"""The storage format of each layer's weights, which depends only on the phase of training."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.stackwise.training.quantized_trunk import (
    QuantizedLinear,
    dequantize_layers,
    quantize_layers,
)
from infrastructure.features.stackwise.training.stack_phases import (
    ADAPTERS,
    StackPhase,
    StackPlan,
)

DTYPES = {"full": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class LayerForm:
    """The storage format of a layer's weights.

    Attributes:
        dtype: type of weights that are not quantized; None: as they were loaded.
        stored_as: a name in `QUANTIZATIONS`; None: not quantized.
    """

    dtype: torch.dtype | None = None
    stored_as: str | None = None


AS_LOADED = LayerForm()


def forms_of(
    config: TrainingConfig, plan: StackPlan, phase: StackPhase, num_layers: int
) -> list[LayerForm]:
    """Return the storage format of each layer in a phase."""
    forms = [AS_LOADED] * num_layers
    if not plan.is_sequential or phase.unit is None:
        is_frozen = config.qlora_enabled and config.trunk_is_quantized
        return [LayerForm(stored_as=config.quantization_type)] * num_layers if is_frozen else forms
    precision = config.progressive.new_stack_precision
    is_quantized = precision not in DTYPES
    new = LayerForm(stored_as=precision) if is_quantized else LayerForm(DTYPES[precision])
    for index in range(num_layers):
        if phase.unit.first <= index < phase.unit.last:
            forms[index] = new
        elif index < phase.unit.first and not config.trunk_trains and config.trunk_is_quantized:
            forms[index] = LayerForm(stored_as=config.quantization_type)
        elif index < phase.unit.first and is_quantized:
            forms[index] = new
    return forms


@torch.no_grad()
def take_forms(
    layers: Iterable[torch.nn.Module], wanted: Iterable[LayerForm], loaded_dtype: torch.dtype
) -> bool:
    """Convert layers to storage formats; return whether parameters were added or removed."""
    has_changed = False
    for layer, form in zip(layers, wanted, strict=True):
        is_quantized = any(isinstance(m, QuantizedLinear) for m in layer.modules())
        if form.stored_as is not None:
            if not is_quantized:
                _cast(layer, loaded_dtype)
                quantize_layers(layer, form.stored_as)
                has_changed = True
            continue
        if is_quantized:
            dequantize_layers(layer, loaded_dtype)
            has_changed = True
        _cast(layer, form.dtype or loaded_dtype)
    return has_changed


def _cast(layer: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast a layer's weights in place, so that the optimizer keeps the same parameters."""
    for name, parameter in layer.named_parameters():
        if ADAPTERS not in name and parameter.is_floating_point() and parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
            parameter.grad = None
