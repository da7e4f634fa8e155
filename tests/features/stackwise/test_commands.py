"""Stack-wise training is the same by flags and by a form; `tests/config/sources` has the others."""

from pathlib import Path
from typing import Any

import yaml

from colab.form import ConfigForm
from infrastructure.commands.main import create_parser
from infrastructure.commands.parser import parse
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.flags import flag_names, flags_given
from infrastructure.config.sources.load import load_config
from tests.colab.forms import type_into
from tests.deployment.runs import small_settings

WANTED = {
    "strategy": "progressive",
    "num_epochs": 1,
    "qlora_rank": 3,
    "qlora_dropout": 0.1,
    "progressive.target_stacks": 2,
    "progressive.trunk_strategy": "qlora",
}


def settings_in(folder: Path) -> dict[str, Any]:
    settings = small_settings(folder)
    settings["model"]["embedded"]["num_layers"] = 3
    return settings


def by_flags(folder: Path) -> DeploymentConfig:
    flags = []
    for name, value in WANTED.items():
        flags += [flag_names(f"training.{name}")[0], str(value)]
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(settings_in(folder)))
    options = parse(create_parser(), ["train", "--config", str(path), *flags])
    return load_config(path, environment={}, flags=flags_given(options))


def by_form(folder: Path) -> DeploymentConfig:
    form = ConfigForm(DeploymentConfig(**settings_in(folder)))
    for name, value in WANTED.items():
        type_into(form, f"training.{name}", str(value))
    return form.config


def test_flags_and_a_form_train_the_same(tmp_path: Path) -> None:
    flags, form = (way(tmp_path).to_dict()["values"] for way in (by_flags, by_form))
    assert flags == form
    for name, value in WANTED.items():
        found = form["training"]
        for part in name.split("."):
            found = found[part]
        assert found == value
