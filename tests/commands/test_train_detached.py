"""The process of a detached training: what it trains, and where its output goes."""

import argparse
import io
import json
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from infrastructure.commands import train_detached
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.spelling import as_keyword
from infrastructure.core.console import show
from infrastructure.core.messages import Setting, spelled_by
from infrastructure.deployment import deploy_training, detached
from infrastructure.monitoring.logging_config import OUTPUT_FILE
from infrastructure.run.directory import RunDirectory
from tests.deployment.runs import small_config

SETTING = Setting("training.num_epochs")


@contextmanager
def output_to(path: Path) -> Generator[None]:
    """Within, what is printed goes to a file, as that of the process does."""
    with path.open("a") as out, path.open("a") as err, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        yield


@pytest.mark.parametrize("is_begun", [True, False])
@pytest.mark.parametrize("is_resumed", [True, False])
def test_the_output_moves_to_the_run_as_soon_as_it_has_a_folder(
    is_begun: bool, is_resumed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder, config = tmp_path / "run", tmp_path / "folder", small_config(tmp_path)
    folder.mkdir()
    (run / OUTPUT_FILE).parent.mkdir(parents=True)
    (run / OUTPUT_FILE).write_text("of an earlier process\n")
    given: list[Any] = []

    class Deployment:
        def __init__(self, *arguments: Any, observers: Any) -> None:
            given.extend([*arguments[:3], observers])
            self.begun = arguments[3]

        def run(self, resumed: Path | None = None) -> Any:
            given.append(resumed)
            print("first")
            if is_begun:
                self.begun(run)
                assert detached.DetachedTraining(folder).run_path == run
            print("second", file=sys.stderr)
            backup = {"problem": "full"}
            return {"status": "finished", "paths": {"run": str(run)}, "backup": backup}

        go_on = run

    monkeypatch.setattr(deploy_training, "TrainingDeployment", Deployment)
    observer = ("collections:deque", [3, 4]) if is_resumed else None
    with output_to(folder / detached.OUTPUT_NAME):
        chosen = run if is_resumed else None
        assert train_detached.train(folder, config, ["data"], chosen, observer) == 3
    observers = given.pop(3)
    assert given == [config, show, ["data"], RunDirectory(run) if is_resumed else None]
    assert [[*one] for one in observers] == ([[3, 4]] if is_resumed else [])
    training = detached.DetachedTraining(folder)
    assert (training.run_path, training.was_finished_before) == (run, not is_begun)
    earlier, output = (run / OUTPUT_FILE).read_text(), folder / detached.OUTPUT_NAME
    if is_begun:
        assert earlier == "of an earlier process\nfirst\nsecond\n"
        assert not output.exists()
    else:
        assert earlier == "of an earlier process\n"
        assert sorted(output.read_text().split()) == ["first", "second"]


def test_output_stays_where_it_is_if_it_cannot_be_moved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = tmp_path / "before", tmp_path / "file/after"
    (tmp_path / "file").touch()
    with output_to(before):
        train_detached._move_output(before, after)
        print("still here")
    assert before.read_text() == "still here\n"
    [line] = caplog.messages
    assert line.startswith(f"commands.output_not_moved(path={before}, error=")


@pytest.mark.parametrize(
    ("run", "is_python"),
    [(None, False), ("a/run", True)],
)
def test_what_arrives_is_trained(
    run: str | None,
    is_python: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = small_config(tmp_path, seed=7)
    message = {
        **{"configuration": detached._as_it_stands(config), "accept": ["data"], "run": run},
        **{"observer": ["a:b", 3], "environment_notes": ["a note"], "is_python": is_python},
    }
    calls: list[Any] = []
    codes: list[int | None] = [None, 75]

    def several(arrived: DeploymentConfig, words: list[str], stdin: bytes, begun: Any) -> Any:
        calls.append((arrived.training.seed, words, json.loads(stdin), begun))
        return codes.pop(0)

    def train(folder: Path, arrived: DeploymentConfig, *rest: Any) -> int:
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        calls.append((folder, arrived.training.seed, *rest, f"{SETTING}"))
        return 143

    monkeypatch.setattr(train_detached, "on_several_processes", several)
    monkeypatch.setattr(train_detached, "train", train)
    options = argparse.Namespace(folder="folder", words_given=["train-detached", "folder"])
    before = signal.getsignal(signal.SIGHUP)
    try:
        for code in (143, 75):
            monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(message)))
            assert train_detached.run(options) == code
    finally:
        signal.signal(signal.SIGHUP, before)
    assert calls[0][:3] == calls[2][:3] == (7, ["train-detached", "folder"], message)
    path = None if run is None else Path(run)
    (*arrived, setting) = calls[1]
    assert arrived == [Path("folder"), 7, ["data"], path, ["a:b", 3]]
    with spelled_by(as_keyword) if is_python else nullcontext():
        assert setting == f"{SETTING}"
    assert len(calls) == 3
    moved = tmp_path / "folder"
    moved.mkdir()
    monkeypatch.chdir(tmp_path)
    with output_to(moved / detached.OUTPUT_NAME):
        print("line")
        calls[0][3](tmp_path / "run")
    assert (tmp_path / "run" / OUTPUT_FILE).read_text() == "line\n"
