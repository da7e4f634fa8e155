"""What goes together is known without torch; each refusal is a row of the table of wrong inputs."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.training.methods.check import (
    NOT_HERE,
    SETTINGS,
    Treatment,
    Use,
    check_method,
    refused_settings,
    treatment_of,
)
from infrastructure.training.methods.method_table import installed_method
from tests.config.field_values import other_value
from tests.training.methods.method_runs import configuration, methods_here

PROBE = """
import sys
from infrastructure.training.methods import check, method_data, rewards
sys.exit(sum(name in sys.modules for name in ("torch", "trl", "transformers", "datasets")))
"""


def test_nothing_heavy_is_imported() -> None:
    subprocess.run([sys.executable, "-c", PROBE], check=True, timeout=120)


@pytest.mark.parametrize("method", methods_here())
def test_what_goes_together_is_let_pass(tmp_path: Path, saved_llama: Path, method: str) -> None:
    teacher = tmp_path / "teacher"
    teacher.mkdir()
    (teacher / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 300}))
    check_method(configuration(method, tmp_path, saved_llama, teacher))


def test_the_own_loop_is_not_looked_at() -> None:
    check_method(DeploymentConfig(data_path="nowhere.jsonl"))


def test_a_data_set_of_the_hub_is_looked_at_when_it_is_there(saved_llama: Path) -> None:
    check_method(
        DeploymentConfig(
            data_path="nobody/nothing", model_name=str(saved_llama), training={"method": "dpo"}
        )
    )


def test_what_is_not_taken_is_there_in_trl() -> None:
    """A name that TRL has dropped would be refused for a reason that is none."""
    here = methods_here()
    known = {name for method in here for name in installed_method(method).own_arguments()}
    of_teachers = {name for name in NOT_HERE if "distillation" not in here and "teacher" in name}
    assert set(NOT_HERE) - known - of_teachers == set()


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
