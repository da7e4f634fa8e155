"""Stack-wise training is the same however it is asked for: by flags, YAML, environment or form."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from colab.form import ConfigForm
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.flags import flag_names
from infrastructure.core.files import file_sha256
from infrastructure.deployment.deploy_training import TrainingDeployment
from tests.colab.forms import type_into
from tests.deployment.runs import losses, runs_of, small_settings
from tests.forks import run_forked

ROOT = Path(__file__).resolve().parents[3]
WANTED = {
    "strategy": "progressive",
    "num_epochs": 1,
    "qlora_rank": 3,
    "qlora_dropout": 0.1,
    "progressive.target_stacks": 2,
    "progressive.trunk_strategy": "qlora",
}


def settings_in(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    settings = small_settings(folder)
    settings["model"]["embedded"]["num_layers"] = 3
    return settings


def temper_train(folder: Path, settings: dict[str, Any], *flags: str, **variables: str) -> None:
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "infrastructure", "train", "--config", str(path), *flags]
    run_forked(command, cwd=ROOT, env={**os.environ, **variables})


def by_yaml(folder: Path) -> None:
    settings = settings_in(folder)
    progressive = {"target_stacks": 2, "trunk_strategy": "qlora"}
    flat = {name: value for name, value in WANTED.items() if "." not in name}
    settings["training"] |= {**flat, "progressive": progressive}
    temper_train(folder, settings)


def by_flags(folder: Path) -> None:
    flags = []
    for name, value in WANTED.items():
        flags += [flag_names(f"training.{name}")[0], str(value)]
    temper_train(folder, settings_in(folder), *flags)


def by_environment(folder: Path) -> None:
    variables = {
        "TEMPER_TRAINING__" + name.upper().replace(".", "__"): str(value)
        for name, value in WANTED.items()
    }
    temper_train(folder, settings_in(folder), **variables)


def by_form(folder: Path) -> None:
    form = ConfigForm(DeploymentConfig(**settings_in(folder)))
    for name, value in WANTED.items():
        type_into(form, f"training.{name}", str(value))
    TrainingDeployment(form.config, say=lambda line: None).run()


@pytest.fixture(scope="module")
def flagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stackwise") / "flags"
    by_flags(folder)
    return folder


def results(folder: Path) -> tuple[list[float], str]:
    [run] = runs_of(folder)
    assert len(list((run / "stacks").glob("*.safetensors"))) == 2
    return losses(run), file_sha256(run / "final/model.safetensors")


@pytest.mark.parametrize("way", [by_yaml, by_environment, by_form])
def test_the_same_training(way: Callable[[Path], None], flagged: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    way(folder)
    assert results(folder) == results(flagged)
