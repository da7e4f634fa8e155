"""Whole runs with a memory: killed and continued, measured, asked, exported, trained on."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.forecast import forecast
from infrastructure.models.added_modules import ADDED_WEIGHTS
from tests.deployment.runs import (
    deploy,
    end,
    small_config,
    small_settings,
    start_temper,
    when_saved,
    write_rows,
    write_settings,
)

MEMORY: dict[str, Any] = {
    "enabled_extensions": ["memory"],
    "memory": {"slots": 4, "heads": 2, "store": 16},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody broke off."""
    return deploy(small_config(tmp_path_factory.mktemp("whole"), **MEMORY))[0]


def weights_of(folder: Path) -> dict[str, bytes]:
    names = ("model.safetensors", ADDED_WEIGHTS)
    return {name: (folder / name).read_bytes() for name in names}


def test_a_killed_run_ends_with_the_same_files(finished: Path, tmp_path: Path) -> None:
    write_settings(tmp_path, **MEMORY)
    process = start_temper("train", folder=tmp_path)
    run = when_saved(tmp_path, 3, process)
    assert end(process, signal.SIGKILL)[0] == -9
    assert not (run / "final").exists()
    again = start_temper("train", folder=tmp_path)
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    assert weights_of(run / "final") == weights_of(finished / "final")


def test_it_answers_and_is_measured_with_its_memory(
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # the results of `eval` are written below
    assert main(["ask", str(finished), "Reverse 101", "--max-tokens", "3"]) == 0
    rows = str(write_rows(tmp_path / "rows.jsonl", 100, 103))
    plain = tmp_path / "plain"
    plain.mkdir()
    for file in (finished / "final").iterdir():
        if not file.name.startswith(("extension", "SHA256SUMS")):
            (plain / file.name).write_bytes(file.read_bytes())
    losses = []
    for model in (finished, plain):
        capsys.readouterr()
        cache = ["--cache-directory", str(tmp_path / "cache")]
        assert main(["eval", str(model), rows, "--json", "--max-tokens", "2", *cache]) == 0
        losses.append(json.loads(capsys.readouterr().out)["metrics"]["eval_loss"])
    assert losses[0] != losses[1]


def test_a_checkpoint_is_exported_with_it_and_in_no_other_format(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--output-dir", str(finished.parent)]
    folder = tmp_path / "model"
    assert main(["export", finished.name, str(folder), *out]) == 0
    card = (folder / "README.md").read_text()
    trained = "publish.card_trained_with_extension(trained=deployment.trains_all(), added=memory)"
    assert f"| trained | {trained} |" in card
    assert "publish.card_load_extensions" in card
    assert "AutoModelForCausalLM" not in card  # which would leave the memory out
    exported, kept = (load_file(one / ADDED_WEIGHTS) for one in (folder, finished / "final"))
    assert exported.keys() == kept.keys()
    assert all(bool((exported[name] == kept[name]).all()) for name in kept)
    for words, sentence in (
        (["--as", "merged"], "deployment.export_extension_weights"),
        (["--bits", "16"], "deployment.export_extension_weights"),
    ):
        capsys.readouterr()
        assert main(["export", finished.name, str(tmp_path / "x"), *words, *out]) == 2
        assert sentence in " ".join(capsys.readouterr().err.split())
    assert main(["export", finished.name, "--push-to-hub", "me/it", *out]) == 2
    assert "publish.extension_weights" in " ".join(capsys.readouterr().err.split())


def test_the_next_training_begins_with_it(finished: Path, tmp_path: Path) -> None:
    settings = small_settings(tmp_path, max_steps=2, num_epochs=1)
    settings["model"] = {"name": str(finished)}
    run, _ = deploy(DeploymentConfig(**settings))
    assert load_file(run / "final" / ADDED_WEIGHTS).keys()


def test_a_forecast_counts_its_weights(tmp_path: Path) -> None:
    plain = forecast(small_config(tmp_path))
    large = {"enabled_extensions": ["memory"], "memory": {"slots": 100_000, "store": 0}}
    with_memory = forecast(small_config(tmp_path, **large))
    added = 2 * 100_000 * 32 * 4  # keys and values, 32 wide, in fp32
    assert with_memory.disk_bytes - plain.disk_bytes > 3 * added
    assert with_memory.peak_memory_bytes - plain.peak_memory_bytes > 3 * added


def test_several_processes_are_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    config = DeploymentConfig(**small_settings(tmp_path, **MEMORY), num_processes=2)
    with pytest.raises(
        ValueError, match=r"config\.added_weights_on_processes.*count=2.*names=memory"
    ):
        deploy(config)
    assert not (tmp_path / "runs").exists()
