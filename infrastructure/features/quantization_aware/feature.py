"""Quantization-aware training: the model computes with rounded weights while it learns."""

from infrastructure.core.features import Feature

_HERE = "infrastructure.features.quantization_aware"

FEATURE = Feature(
    name="quantization_aware",
    fields={"model": f"{_HERE}.config:QuantizationAwareModel"},
    elsewhere={"qat": ("model.quantization_aware",)},
    model_change=f"{_HERE}.rounding:change",
    contradictions=f"{_HERE}.checks:CONTRADICTIONS",
    added_weights=f"{_HERE}.checks:ADDED_WEIGHTS",
    sharded=f"{_HERE}.checks:SHARDED",
    check_files=f"{_HERE}.checks:check_files",
    outputs={f"final-{kind}": "quantization_aware.path_rounded" for kind in ("int4", "int8_int4")},
)
