"""Stack-wise training is the same by flags and by a form; `tests/config/sources` has the others."""

import sys
from pathlib import Path
from typing import Any

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


def temper_train(folder: Path, settings: dict[str, Any], *flags: str) -> None:
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "infrastructure", "train", "--config", str(path), *flags]
    run_forked(command, cwd=ROOT)


def by_flags(folder: Path) -> None:
    flags = []
    for name, value in WANTED.items():
        flags += [flag_names(f"training.{name}")[0], str(value)]
    temper_train(folder, settings_in(folder), *flags)


def by_form(folder: Path) -> None:
    form = ConfigForm(DeploymentConfig(**settings_in(folder)))
    for name, value in WANTED.items():
        type_into(form, f"training.{name}", str(value))
    TrainingDeployment(form.config, say=lambda line: None).run()


def results(folder: Path) -> tuple[list[float], str]:
    [run] = runs_of(folder)
    assert len(list((run / "stacks").glob("*.safetensors"))) == 2
    return losses(run), file_sha256(run / "final/model.safetensors")


def test_flags_and_a_form_train_the_same(tmp_path: Path) -> None:
    for way in (by_flags, by_form):
        way(tmp_path / way.__name__)
    assert results(tmp_path / "by_flags") == results(tmp_path / "by_form")
