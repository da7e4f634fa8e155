"""`temper tune` on a real small model: it measures, tells, and prints flags that can be typed."""

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.commands.main import DONE, main
from infrastructure.commands.parser import create_parser, parse
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment import tuning
from infrastructure.deployment.tuning import alternatives, flags_of, tune
from infrastructure.deployment.tuning_trials import TuningTrials
from tests.deployment.runs import small_settings


def test_the_fastest_settings_are_measured_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "worker_counts", lambda: [0, 1])
    settings = small_settings(tmp_path, mixed_precision="fp32", compile_mode=None)
    del settings["training"]["batch_size"], settings["data"]["num_workers"]
    settings["training"]["gradient_checkpointing"] = False
    config = DeploymentConfig(**settings)
    assert tune(config, with_learning_rate=False, as_json=True) == DONE
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["settings"]["training.batch_size"] >= 1
    assert "training.batch_size auto:" in err
    measured = {entry["key"] for entry in found["tried"]}
    assert {"", "data.num_workers"} <= measured
    options = parse(create_parser(), ["train", *found["flags"].split()])
    assert options.command == "train"


def test_what_somebody_gave_is_not_tried(tmp_path: Path) -> None:
    given = {"mixed_precision": "fp32", "compile_mode": "default"}
    config = DeploymentConfig(**small_settings(tmp_path, **given))
    tried = alternatives(config, TuningTrials(config).trainer({}))
    assert tried.keys() == {"training.gradient_checkpointing", "data.prefetch_factor"}


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({"training.batch_size": 8}, "--batch-size 8"),
        ({"training.gradient_checkpointing": True}, "--gradient-checkpointing"),
        ({"data.pin_memory": False}, "--no-pin-memory"),
    ],
)
def test_settings_are_told_as_they_are_typed(settings: dict[str, Any], flags: str) -> None:
    assert flags_of(settings) == flags
    parse(create_parser(), ["train", *flags.split()])


def test_the_range_test_suggests_a_rate_that_trains(tmp_path: Path) -> None:
    config = DeploymentConfig(**small_settings(tmp_path))
    found = TuningTrials(config).learning_rates()
    assert found.suggested is not None
    assert 1e-6 < found.suggested < 1.0


def test_the_command_is_there() -> None:
    assert main(["tune", "--batch-sise", "3"]) == 2
