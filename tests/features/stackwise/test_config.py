"""Consequences of the settings of block-wise training."""

from typing import Any

import pytest

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.stackwise.config import QLoRA

PROPERTIES = (
    *("hides_tokens", "trains_units_in_turn", "holds_half_weights", "grows_once", "trunk_trains"),
    *("trunk_is_quantized", "trunk_is_adapted_again", "trunk_is_adapted", "trunk_can_be_cached"),
    "names_examples",
)
LAYERWISE = {"mode": "layerwise"}
IN_TURN = ["trains_units_in_turn"]
CACHED = ["trunk_can_be_cached", "names_examples"]
ADAPTED = [*IN_TURN, "trunk_is_adapted"]
PROGRESSIVE = {"strategy": "progressive"}


@pytest.mark.parametrize(
    ("training", "true", "strategy"),
    [
        ({}, [], None),
        ({"time_step_masking": True}, ["hides_tokens"], None),
        (LAYERWISE, [*IN_TURN, *CACHED], "progressive"),
        (PROGRESSIVE, [*IN_TURN, *CACHED], None),
        ({**LAYERWISE, "strategy": "end_to_end"}, [], "progressive"),
        ({"mode": "fused"}, [*IN_TURN, "trunk_trains"], "progressive"),
        (
            {**PROGRESSIVE, "progressive": {"growth": "once"}},
            [*IN_TURN, "grows_once", "trunk_trains"],
            None,
        ),
        ({**LAYERWISE, "progressive": {"growth": "once"}}, [*IN_TURN, *CACHED], "progressive"),
        *(
            (
                {**LAYERWISE, "progressive": {"new_stack_precision": form}},
                [*IN_TURN, *["holds_half_weights"] * is_half, *CACHED],
                "progressive",
            )
            for form, is_half in (("bf16", True), ("fp16", True), ("nf_fp8", False))
        ),
        ({"progressive": {"new_stack_precision": "bf16"}}, [], None),
        ({"quantization_enabled": True}, ["trunk_is_quantized"], "end_to_end"),
        ({"backbone_quantized": True}, ["trunk_is_quantized"], "end_to_end"),
        ({"backbone_quantized": False}, [], None),
        ({"qlora_enabled": True}, [], "end_to_end"),
        ({**LAYERWISE, "qlora_enabled": True}, ADAPTED, "progressive"),
        ({**LAYERWISE, "progressive": {"trunk_strategy": "qlora"}}, ADAPTED, "progressive"),
        ({"progressive": {"trunk_strategy": "qlora"}}, [], None),
        ({"qlora_strategy": "progressive"}, ["trunk_is_adapted_again"], None),
        ({"qlora_progressive_enabled": True}, ["trunk_is_adapted_again"], None),
        ({"qlora_strategy": "variable", "qlora_progressive_enabled": False}, [], None),
    ],
    ids=str,
)
def test_what_follows_from_the_settings(
    training: dict[str, Any], true: list[str], strategy: str | None
) -> None:
    config = TrainingConfig(**training)
    values = {name: getattr(config, name) for name in PROPERTIES}
    assert values == {name: name in true for name in PROPERTIES}
    assert config.needed_strategy == strategy


def test_the_settings_of_low_rank_matrices_as_one_object() -> None:
    given = {"enabled": True, "rank": 3, "alpha": 5.0, "dropout": 0.25, "lr": 0.125}
    given |= {"progressive_enabled": False, "strategy": "variable"}
    config = TrainingConfig(**{f"qlora_{name}": value for name, value in given.items()})
    assert config.qlora == QLoRA(**given)  # type: ignore[arg-type]
