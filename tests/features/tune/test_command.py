"""`temper tune`: real small trainings, and flags that `temper train` takes."""

import json
import shlex
from pathlib import Path

import pytest

from infrastructure.commands.main import create_parser, main
from infrastructure.commands.parser import parse
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.exit_codes import ExitCode
from infrastructure.deployment import given_paths
from infrastructure.features.tune import tuning
from tests.deployment.runs import small_settings


def test_the_fastest_settings_are_measured_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "worker_counts", lambda: [0, 1])
    settings = small_settings(tmp_path, mixed_precision="fp32", compile_mode=None)
    del settings["training"]["batch_size"], settings["data"]["num_workers"]
    settings["training"]["gradient_checkpointing"] = False
    settings["data"]["prefetch_factor"] = 2
    (tmp_path / "c.yaml").write_text(json.dumps(settings))
    assert main(["tune", "--config", str(tmp_path / "c.yaml"), "--json"]) == ExitCode.DONE
    out, err = capsys.readouterr()
    fastest = json.loads(out)
    found = fastest["settings"]
    size = found.get("training.batch_size", 32) * found.get("training.gradient_accumulation", 1)
    assert size == 32  # another step would train another model
    assert "tune.tuned_micro_batch" in err
    measured = {entry["key"] for entry in fastest["tried"]}
    assert {"", "data.num_workers"} <= measured
    options = parse(create_parser(), shlex.split(fastest["command"])[1:])
    assert (options.command, options.config) == ("train", str(tmp_path / "c.yaml"))


def test_the_command_is_whole_and_examples_are_as_long_as_the_model_sees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths, tested = list[int](), list[bool]()

    def found(config: DeploymentConfig, tests_rates: bool, _: object) -> dict[str, object]:
        tested.append(tests_rates)
        lengths.append(config.data.max_length)
        return {"settings": {"training.batch_size": 4}, "flags": "--batch-size 4", "tried": []}

    monkeypatch.setattr(tuning, "find_fastest", found)
    model = tmp_path / "my model"
    model.mkdir()
    (model / "config.json").write_text(
        json.dumps({"model_type": "llama", "max_position_embeddings": 128})
    )
    (tmp_path / "d.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 4)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(given_paths, "check_folder", lambda *_: None)  # no weights lie there
    typed = ["d.jsonl", "--model", "my model", "--batch-size", "auto", "--lora"]
    assert main(["tune", *typed]) == ExitCode.DONE
    command = "temper train d.jsonl --model 'my model' --lora --batch-size 4"
    assert capsys.readouterr().out.splitlines()[-1] == (f"tune.fastest_training(command={command})")
    assert main(["tune", *typed, "--learning-rate-test", "--json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out) == {
        **{"settings": {"training.batch_size": 4}, "flags": "--batch-size 4", "tried": []},
        "command": command,
    }
    assert (lengths, tested) == ([128, 128], [False, True])


def test_a_flag_that_is_not_there_is_refused() -> None:
    assert main(["tune", "--batch-sise", "3"]) == ExitCode.WRONG_INPUT
