"""The storage format of each layer in each phase, and the conversion between formats."""

from typing import Any

import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.stackwise.training.layer_forms import (
    AS_LOADED,
    DTYPES,
    LayerForm,
    forms_of,
    take_forms,
)
from infrastructure.features.stackwise.training.quantized_trunk import QuantizedWeight
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.features.stackwise.training.stack_adapters import StackAdapters
from infrastructure.features.stackwise.training.stack_phases import plan_stacks
from tests.features.stackwise.training.test_stack_phases import NEW_QUANTIZED, PAIRS
from tests.models.architectures import tiny_model

FORMS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "plain": (PAIRS, ["full full . .", ". . full full"]),
    "bf16": (
        {
            "strategy": "progressive",
            "progressive": {"target_stacks": 2, "new_stack_precision": "bf16"},
        },
        ["bf16 bf16 . .", ". . bf16 bf16"],
    ),
    "quantized": (
        {**PAIRS, "quantization_enabled": True, "quantization_type": "fp16"},
        ["full full . .", "<fp16> <fp16> full full"],
    ),
    "another name": (
        {**PAIRS, "backbone_quantized": True},
        ["full full . .", "<nf_fp8> <nf_fp8> full full"],
    ),
    "quantized new stacks": (
        {"strategy": "progressive", **NEW_QUANTIZED},
        ["<nf_fp8> <nf_fp8> . .", "<nf_fp8> <nf_fp8> <nf_fp8> <nf_fp8>"],
    ),
    "both": (
        {
            **{"strategy": "progressive", **NEW_QUANTIZED},
            **{"quantization_enabled": True, "quantization_type": "fp32"},
        },
        ["<nf_fp8> <nf_fp8> . .", "<fp32> <fp32> <nf_fp8> <nf_fp8>"],
    ),
    "fused": (
        {"mode": "fused", "block_size": 2, "quantization_enabled": True},
        ["full full . .", ". . full full"],
    ),
    "at once": ({"strategy": "end_to_end"}, [". . . ."]),
    "only quantized": ({"strategy": "end_to_end", "quantization_enabled": True}, [". . . ."]),
    "low-rank": ({"strategy": "end_to_end", "qlora_enabled": True}, [". . . ."]),
    "low-rank and quantized": (
        {"strategy": "end_to_end", "qlora_enabled": True, "quantization_enabled": True},
        ["<nf_fp8> <nf_fp8> <nf_fp8> <nf_fp8>"],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_phase_has_its_formats(name: str) -> None:
    training, expected = FORMS[name]
    config = TrainingConfig(**training)
    plan = plan_stacks(config, Rack(tiny_model("llama", num_hidden_layers=4)), 1)
    names = {dtype: key for key, dtype in DTYPES.items()}
    found = []
    for phase in plan.phases:
        forms = forms_of(config, plan, phase, 4)
        shown = [
            "." if one == AS_LOADED else names[one.dtype] if one.dtype else f"<{one.stored_as}>"
            for one in forms
        ]
        found.append(" ".join(shown))
    assert found == expected


FULL, HALF, STORED = LayerForm(torch.float32), LayerForm(torch.float16), LayerForm(None, "nf_fp8")


def formats(rack: Rack) -> list[set[torch.dtype]]:
    """The types of each layer's weights, without its low-rank matrices."""
    return [
        {t.dtype for name, t in layer.state_dict().items() if "stack_adapters" not in name}
        for layer in rack.layers
    ]


def test_layers_take_the_form_that_is_wanted_and_come_back() -> None:
    """Weights that are only cast stay the same parameters, for the optimizer."""
    rack = Rack(tiny_model("llama", num_hidden_layers=4).to(torch.bfloat16))
    config = TrainingConfig(mode="layerwise", qlora_enabled=True)
    StackAdapters(config, plan_stacks(config, rack, 1), list(rack.layers), 0)
    pairs = [p for name, p in rack.parameters_of(0, 4) if "lora" in name]
    kept = [p for name, p in rack.parameters_of(0, 2) if "lora" not in name]
    for parameter in kept:
        parameter.grad = torch.ones_like(parameter)
    before = [parameter.detach().clone() for parameter in kept]
    layers = list(rack.layers)
    assert not take_forms(layers, [FULL, HALF, AS_LOADED, AS_LOADED], torch.bfloat16)
    types = [{torch.float32}, {torch.float16}, {torch.bfloat16}, {torch.bfloat16}]
    assert formats(rack) == types
    assert all(parameter.grad is None for parameter in kept)
    assert take_forms(layers, [FULL, STORED, AS_LOADED, STORED], torch.bfloat16)
    found = formats(rack)
    assert [types[0], types[2]] == [found[0], found[2]]
    assert all(torch.float8_e4m3fn in found[index] for index in (1, 3))
    stored = [m for m in rack.model.modules() if isinstance(m, QuantizedWeight)]
    assert {one.dtype for one in stored} == {torch.bfloat16}  # not what they were cast to before
    assert not take_forms(layers, [FULL, STORED, AS_LOADED, STORED], torch.bfloat16)
    assert take_forms(layers, [AS_LOADED] * 4, torch.bfloat16)
    assert formats(rack) == [{torch.bfloat16}] * 4
    now = [p for name, p in rack.parameters_of(0, 1) if "lora" not in name]
    assert all(one is other for one, other in zip(now, kept, strict=False))
    assert all(torch.equal(one, was) for one, was in zip(now, before, strict=False))
    assert {parameter.dtype for parameter in pairs} == {torch.float32}
    with pytest.raises(ValueError, match="zip"):
        take_forms(layers, [AS_LOADED] * 3, torch.bfloat16)
