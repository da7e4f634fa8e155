"""`temper train --detach`: its exit code is that of the process where no training came of it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from infrastructure.commands import train
from infrastructure.commands.main import main
from infrastructure.commands.train import exit_code_of_training
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import RunFailedError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.deployment import detached
from infrastructure.monitoring.records.run_owner import read_trainer, write_trainer
from tests.deployment.runs import small_config


@pytest.mark.parametrize("code", [0, 1, 143])
def test_a_detached_training_hands_its_exit_code_on(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"Reverse {n}", "completion": str(n)[::-1]} for n in range(100, 140)]
    data.write_text("\n".join(map(json.dumps, rows)))
    seen: list[str] = []

    def detach(config: DeploymentConfig, accept: object) -> int:
        seen.append(str(config.data.path))
        return code

    monkeypatch.setattr(train, "detach", detach)
    words = ["train", str(data), "--detach", "--output-dir", str(tmp_path / "runs")]
    assert main(words) == code
    assert seen == [str(data)]


@pytest.mark.parametrize(
    ("summary", "code"),
    [
        ({"status": "finished"}, ExitCode.DONE),
        ({"status": "finished", "backup": {"problem": None}}, ExitCode.DONE),
        ({"status": "finished", "backup": {"problem": "full"}}, ExitCode.NOT_CONFIRMED),
        ({"status": "stopped", "signal": "SIGHUP"}, ExitCode.HUNG_UP),
        ({"status": "stopped", "signal": None, "backup": {"problem": "x"}}, ExitCode.INTERRUPTED),
    ],
)
def test_the_end_of_a_run_is_its_exit_code(summary: Any, code: ExitCode) -> None:
    assert exit_code_of_training(summary) == code


@pytest.mark.parametrize(
    ("end", "code", "lines"),
    [
        (None, 0, ["commands.detached_run_trains(run=a, process=TRAINER)", "look at it"]),
        ("has ended", 0, []),
        (RunFailedError("it broke"), 7, []),
        (KeyboardInterrupt(), 0, ["commands.preparation_continues(process=TRAINER)"]),
    ],
)
def test_a_detached_training_is_followed_until_it_trains(
    end: BaseException | str | None,
    code: int,
    lines: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given: list[object] = []
    write_trainer(tmp_path)
    training = detached.DetachedTraining(tmp_path)
    run = tmp_path / "a"
    run.mkdir()
    write_trainer(run, os.getpid() if end is None else 2**22 + 1)

    def start(config: DeploymentConfig, accept: object) -> detached.DetachedTraining:
        given.extend([config, accept])
        return training

    def follow(followed: detached.DetachedTraining) -> Path:
        assert followed is training
        if isinstance(end, BaseException):
            raise end
        return run

    monkeypatch.setattr(detached, "start", start)
    monkeypatch.setattr(detached, "follow", follow)
    monkeypatch.setattr(detached, "how_to_look_on", lambda path: ["look at it"] * (path == run))
    monkeypatch.setattr(detached.DetachedTraining, "exit_code", lambda training: 7)
    config = small_config(tmp_path)
    assert train.detach(config, ["data"]) == code
    assert given == [config, ["data"]]
    trainer = str(read_trainer(tmp_path))
    assert capsys.readouterr().out.splitlines() == [
        line.replace("TRAINER", trainer) for line in lines
    ]
