"""What can be told before anything is measured, from the settings and from the runs there are."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from colab.cost_line import KnownCosts
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.messages import phrase
from infrastructure.data.samples import use_sample_data
from infrastructure.monitoring.records.run_owner import write_trainer


def config_of(folder: Path, **settings: Any) -> DeploymentConfig:
    return DeploymentConfig(**{"output_dir": str(folder), **settings})


def record(folder: Path, config: DeploymentConfig, **summary: Any) -> Path:
    """A run as its first seconds leave it."""
    recorded = config.changed([])
    use_sample_data(recorded)
    path = folder / "20260101-000000-embedded-abcd"
    path.mkdir(parents=True)
    values = {"run_id": path.name, "configuration": recorded.to_dict()}
    (path / "run.json").write_text(json.dumps(values))
    (path / "summary.json").write_text(json.dumps(summary))
    return path


def trains(epochs: str, batch: str | int, at_most: str = "") -> str:
    """The first line; `batch` is a phrase or a number of examples."""
    if isinstance(batch, int):
        batch = phrase("notebook.num_examples", count=batch)
    extent = phrase("notebook.epochs_in_steps", epochs=epochs, batch=batch, at_most=at_most)
    return phrase("notebook.it_trains", extent=extent)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, trains("3 epochs", 32)),
        (
            {"preset": "quick"},
            phrase(
                "notebook.it_trains",
                extent=phrase(
                    "notebook.steps_of_batch",
                    steps=60,
                    batch=phrase("notebook.num_examples", count=32),
                ),
            ),
        ),
        (
            {"training": {"num_epochs": 1, "gradient_accumulation": 2, "max_steps": 1500}},
            trains("1 epoch", 64, phrase("notebook.at_most_steps", steps=1500)),
        ),
        (
            {"model_name": "someone/model", "batch_size": "auto"},
            trains(
                phrase("notebook.default_epochs", finetune_epochs=3, scratch_epochs=4),
                phrase("notebook.fastest_batch_measured"),
            ),
        ),
    ],
)
def test_how_long_it_trains_follows_from_the_settings(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert KnownCosts().lines(config_of(tmp_path, **settings))[0] == message


def test_where_checkpoints_go_is_reported(tmp_path: Path) -> None:
    lines = KnownCosts().lines(config_of(tmp_path))
    assert lines[1:] == [
        f"notebook.new_run_starts(output_dir={tmp_path})",
        "notebook.checkpoints_not_backed_up()",
    ]
    lines = KnownCosts().lines(config_of(tmp_path, **{"backup.place": "/content/drive"}))
    assert lines[-1] == "notebook.checkpoints_backed_up_to(place=/content/drive)"
    off = {"backup.place": "/content/drive", "enable_backups": False}
    assert (
        "notebook.checkpoints_not_backed_up" in KnownCosts().lines(config_of(tmp_path, **off))[-1]
    )


def test_a_run_of_this_kind_is_named_with_what_was_measured_of_it(tmp_path: Path) -> None:
    path = record(tmp_path, config_of(tmp_path), status="stopped", steps=1200)
    forecast = {"seconds": 125.0, "num_steps": 4000, "peak_memory_bytes": 1 << 30}
    (path / "forecast.json").write_text(json.dumps(forecast))
    known = KnownCosts()
    lines = known.lines(config_of(tmp_path, log_level="DEBUG"))
    so_far = "notebook.steps_already_done(steps=1200)"
    assert lines[1] == f"notebook.run_will_resume(run={path.name}, so_far={so_far})"
    assert "notebook.measured_at_last_start" in lines[2]
    priced = known.lines(config_of(tmp_path, price_per_hour="1.76 compute units"))[2]
    assert "notebook.measured_at_last_start" in priced
    assert "notebook.new_run_starts" in known.lines(config_of(tmp_path, batch_size=4))[1]
    assert "notebook.new_run_starts" in known.lines(config_of(tmp_path, new_run=True))[1]
    (path / "summary.json").write_text(json.dumps({"status": "finished"}))
    assert "notebook.same_run_is_finished" in known.lines(config_of(tmp_path))[1]
    write_trainer(path)
    line = known.lines(config_of(tmp_path))[1]
    assert line.startswith(
        f"notebook.same_run_is_training(run={path.name}, trainer=process {os.getpid()}"
    )


@pytest.mark.parametrize("text", ["", "{}", '{"configuration": {"values": 3}}', "[]"])
def test_a_damaged_run_is_passed_over(text: str, tmp_path: Path) -> None:
    path = record(tmp_path, config_of(tmp_path))
    (path / "run.json").write_text(text)
    assert "notebook.new_run_starts" in KnownCosts().lines(config_of(tmp_path))[1]


def test_runs_that_cannot_be_read_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, config_of(tmp_path))

    def gone(path: Path) -> None:
        raise OSError(107, "Transport endpoint is not connected")

    monkeypatch.setattr("colab.cost_line.read_small_files", gone)
    assert "notebook.runs_unreadable" in KnownCosts().lines(config_of(tmp_path))[1]


def test_a_record_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    path, known = record(tmp_path, config_of(tmp_path)), KnownCosts()
    assert "notebook.run_will_resume" in known.lines(config_of(tmp_path))[1]
    run = json.loads((path / "run.json").read_text())
    run["configuration"]["values"]["training"]["batch_size"] = 4
    (path / "run.json").write_text(json.dumps(run))
    os.utime(path / "run.json", (1, 1))
    assert "notebook.new_run_starts" in known.lines(config_of(tmp_path))[1]
