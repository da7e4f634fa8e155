"""`temper tune`: real small trainings, and flags that `temper train` takes."""

import json
from pathlib import Path

import pytest

from infrastructure.commands.main import create_parser, main
from infrastructure.commands.parser import parse
from infrastructure.core.exit_codes import ExitCode
from infrastructure.deployment import tuning
from tests.deployment.runs import small_settings


@pytest.mark.usefixtures("restore_logging")
def test_the_fastest_settings_are_measured_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "worker_counts", lambda: [0, 1])
    settings = small_settings(tmp_path, mixed_precision="fp32", compile_mode=None)
    del settings["training"]["batch_size"], settings["data"]["num_workers"]
    settings["training"]["gradient_checkpointing"] = False
    (tmp_path / "c.yaml").write_text(json.dumps(settings))
    assert main(["tune", "--config", str(tmp_path / "c.yaml"), "--json"]) == ExitCode.DONE
    out, err = capsys.readouterr()
    fastest = json.loads(out)
    assert fastest["settings"]["training.batch_size"] >= 1
    assert "training.batch_size auto:" in err
    measured = {entry["key"] for entry in fastest["tried"]}
    assert {"", "data.num_workers"} <= measured
    options = parse(create_parser(), ["train", *fastest["flags"].split()])
    assert options.command == "train"


def test_a_flag_that_is_not_there_is_refused() -> None:
    assert main(["tune", "--batch-sise", "3"]) == ExitCode.WRONG_INPUT
