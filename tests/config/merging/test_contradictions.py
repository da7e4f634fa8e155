"""The tables of settings that contradict each other: each row's facts and words exist."""

from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.contradictions import (
    ADDING_EXTENSION,
    CONTRADICTIONS,
    SHARDED,
    all_contradictions,
    contradicting,
    contradictions_in,
    key_of,
    named_facts,
)
from infrastructure.config.schema import schema_of
from infrastructure.core.messages import words_of
from tests.core.test_catalogue import names_in

ROWS = [*all_contradictions(), *SHARDED, *ADDING_EXTENSION]
GIVEN_BY_CALLERS = {"key"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_words_of_a_row_use_only_what_its_facts_give(row: tuple[str, ...]) -> None:
    code, *facts = row
    words = words_of(code)
    assert words is not None
    given = {key_of(fact).rpartition(".")[2] for fact in facts} | GIVEN_BY_CALLERS
    assert names_in(words) <= given


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_facts_of_a_row_are_of_the_configuration(row: tuple[str, ...]) -> None:
    config = DeploymentConfig()
    for key in map(key_of, row[1:]):
        section, _, name = key.rpartition(".")
        is_property = section in ("training", "data") and hasattr(getattr(config, section), name)
        assert key in named_facts() or key in schema_of(DeploymentConfig).fields or is_property


def test_the_defaults_do_not_contradict_each_other() -> None:
    assert [*contradictions_in(CONTRADICTIONS, DeploymentConfig())] == []


def test_a_row_yields_nothing_unless_all_its_facts_hold() -> None:
    config = DeploymentConfig(**{"data.streaming": True})
    row = ("config.auto_compile_not_measured", "data.streaming", "data.augmentation")
    assert [*contradictions_in((row,), config)] == []
    either = ("config.auto_compile_not_measured", "data.streaming", "not data.augmentation")
    assert len([*contradictions_in((either,), config)]) == 1


TOWER = {
    "training.enabled_extensions": ["multimodal"],
    "training.multimodal.vision_tower": "some/tower",
    "model.name": "some/model",
}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"training.multimodal.vision_tower": None}, "vision_tower.not_set"),
        ({"model.name": "embedded"}, "vision_tower.on_new_model"),
        (
            {"model.quantization": "4bit"},
            r"vision_tower\.with_quantized_model.*quantization=4bit",
        ),
        (
            {"model.quantization_aware": "int4"},
            r"quantization_aware\.with_added_weights\(key=training\.enabled_extensions=multimodal",
        ),
        ({"model.backend": "unsloth"}, "vision_tower.with_unsloth"),
        ({"model.adapter": "dialogue"}, r"vision_tower\.adapter_without_images.*adapter=dialogue"),
        (
            {"training.strategy": "curriculum"},
            r"vision_tower\.strategy_has_phases.*strategy=curriculum",
        ),
        (
            {"training.mode": "blockwise"},
            r"vision_tower\.strategy_has_phases.*strategy=progressive",
        ),
    ],
)
def test_what_a_vision_encoder_cannot_be_with_is_refused(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        DeploymentConfig(**{**TOWER, **settings}).check_supported()


def test_all_else_goes_with_a_vision_encoder() -> None:
    assert DeploymentConfig(**TOWER).problems() == []
    assert DeploymentConfig(**TOWER, **{"training.extension_learning_rate": 0.1}).problems() == []


def test_the_setting_that_contradicts_a_fact_is_named() -> None:
    lora = {"model.name": "a/b", "model.lora_config": True}
    both = {f"model.lora_config.use_{kind}": True for kind in ("rslora", "dora")}
    unsloth = "model.backend=unsloth"
    for settings, fact, expected in (
        ({**lora, **both}, unsloth, ["model.lora_config.use_dora"]),
        ({**lora, "model.lora_config.use_rslora": True}, unsloth, ["model.lora_config.use_rslora"]),
        (lora, unsloth, []),
        ({"enable_gpu_optimization": False}, "training.compile_mode=auto", ["enable_gpu_opt"]),
        ({"enable_gpu_optimization": False}, "training.compile_mode=default", []),
        ({}, "training.compile_mode=auto", []),
        (
            {"training.best_metric": "f1", "training.validation_prompts": 0},
            "training.best_metric",
            ["training.best_needs_answers"],
        ),
    ):
        found = [*contradicting(fact, DeploymentConfig(**settings))]
        assert len(found) == len(expected)
        assert all(map(str.startswith, map(str, found), expected))
    refused = DeploymentConfig(**lora, **both, **{"model.backend": "unsloth"}).problems()
    lora_variant = "lora_variant=model.lora_config.use_dora, backend=unsloth"
    assert refused == [f"config.lora_variant_with_unsloth({lora_variant})"]


@pytest.mark.parametrize(
    ("fact", "holds"),
    [
        ("data.streaming", True),
        ("not data.streaming", False),
        ("data.packing=true", True),
        ("data.packing=false|true", True),
        ("data.packing=false", False),
        ("not data.packing=false", True),
        ("training.optimizer=adamw|sgd", True),
        ("not training.optimizer=adamw|sgd", False),
        ("training.optimizer=sgd|adam", False),
        ("model.lora_config.use_dora", False),  # inside a section that is off
        ("strategy=standard", True),
    ],
)
def test_a_fact_is_a_setting_one_of_its_values_or_neither(fact: str, holds: bool) -> None:
    config = DeploymentConfig(**{"data.streaming": True})
    row = ("config.auto_compile_not_measured", fact)
    assert bool([*contradictions_in((row,), config)]) is holds
