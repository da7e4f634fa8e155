"""No setting is ignored where TRL trains: each is carried out, has nothing to decide, or is
refused by its name."""

from dataclasses import fields
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.training.methods.settings_table import (
    SETTINGS,
    Treatment,
    Use,
    refused_settings,
    treatment_of,
)
from tests.config.field_values import other_value

FIELDS = schema_of(DeploymentConfig).fields
REFUSED = [
    key
    for key in FIELDS
    if (treatment := treatment_of(key)) is not None and treatment.use is Use.REFUSED
]


def test_every_key_has_a_treatment_and_no_other_is_named() -> None:
    assert [key for key in FIELDS if treatment_of(key) is None] == []
    sections = {key[: key.rfind(".") + 1] for key in FIELDS} | {"training.recovery.", "quantum."}
    known = {*FIELDS, *sections, "resources.", "monitor."}
    assert [name for name in SETTINGS if name not in known] == []


def test_what_has_nothing_to_decide_or_is_refused_has_a_reason() -> None:
    silent = [
        name
        for name, treatment in SETTINGS.items()
        if treatment.use in (Use.NOTHING, Use.REFUSED, Use.ARGUMENT) and not treatment.words
    ]
    assert silent == []
    assert [f.name for f in fields(Treatment)] == ["use", "words", "values"]


@pytest.mark.parametrize("key", REFUSED)
def test_a_setting_that_cannot_be_carried_out_is_refused_by_its_name(key: str) -> None:
    if key.startswith("training.qlora_ranks"):
        pytest.skip("it has a shape of its own")
    lora = {"lora_config": {"r": 4}} if key.startswith("model.lora_config.") else {}
    config = DeploymentConfig(training={"method": "dpo"}, model=lora)
    spec = FIELDS[key]
    value = other_value(spec)
    treatment = treatment_of(key)
    assert treatment is not None
    section, _, name = key.rpartition(".")
    target: Any = config
    for part in filter(None, section.split(".")):
        target = getattr(target, part)
    target.__dict__[name] = value  # whatever else it needs beside it
    refusals = [text for text in refused_settings(config) if f"(setting={key}=" in text]
    is_taken = treatment.values is not None and value in treatment.values
    assert len(refusals) == (0 if is_taken else 1)
    if refusals:
        assert refusals[0].startswith("methods.setting_not_supported(")
        assert f"reason={treatment.words}()" in refusals[0]
        assert "method=dpo" in refusals[0]


@pytest.mark.parametrize(
    ("section", "name", "value", "reason"),
    [
        ("training", "optimizer", "adamw_offload", "methods.argument_takes_only(argument=optim"),
        ("training", "mixed_precision", "fp8", "methods.argument_takes_only(argument=bf16"),
        ("data", "over_length", "truncate", "methods.truncates_only_ends()"),
        ("model", "backend", "unsloth", "methods.loaded_by_transformers()"),
    ],
)
def test_some_values_of_a_setting_cannot_be_carried_out(
    section: str, name: str, value: str, reason: str
) -> None:
    sections: dict[str, dict[str, object]] = {"training": {"method": "kto"}}
    sections[section] = {**sections.get(section, {}), name: value}
    [refusal] = refused_settings(DeploymentConfig(**sections))  # type: ignore[arg-type]
    assert refusal.startswith(f"methods.setting_not_supported(setting={section}.{name}={value},")
    assert f"method=kto, reason={reason}" in refusal


def test_the_defaults_can_be_carried_out() -> None:
    assert list(refused_settings(DeploymentConfig(training={"method": "dpo"}))) == []
