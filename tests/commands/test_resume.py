"""`temper resume`: what it hands on to the deployment and to several processes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.commands import resume as command
from infrastructure.commands.main import main
from infrastructure.config.merging.precedence import GivenValue, Layer, Source
from infrastructure.core.console import show
from infrastructure.core.exit_codes import ExitCode
from infrastructure.deployment import one_call, resuming


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, ...]]:
    """The arguments of each call, by the name of what was called."""
    calls: list[tuple[Any, ...]] = []
    chosen = SimpleNamespace(config="configuration")

    def record(name: str, result: Any) -> Any:
        return lambda *arguments: (calls.append((name, *arguments)), result)[1]

    summary = {"status": "stopped", "signal": "SIGTERM"}
    monkeypatch.setattr(resuming, "find_to_resume", record("find", chosen))
    monkeypatch.setattr(command, "on_several_processes", record("several", None))
    monkeypatch.setattr(one_call, "resume_run", record("resume", summary))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOG_LEVEL", raising=False)
    return calls


def test_a_run_is_found_with_its_changes_and_its_place(
    given: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPER_BACKUP__PLACE", "drive:x")
    monkeypatch.setenv("NUM_EPOCHS", "9")  # of trainings that begin
    words = ["resume", "mine", "--lr", "0.5", "--accept", "lr,data", "--output", "there"]
    assert main(words) == ExitCode.TERMINATED
    accepted = ["learning_rate", "data"]
    changes = [GivenValue("training.learning_rate", 0.5, Source(Layer.FLAG, "--lr"))]
    source = Source(Layer.ENVIRONMENT, "environment TEMPER_BACKUP__PLACE")
    place = GivenValue("backup.place", "drive:x", source)
    (find, several, resume) = given
    assert find == ("find", "mine", "there", changes, accepted, show, place)
    assert several == ("several", "configuration", words)
    assert resume[0] == "resume"
    assert (resume[1].config, *resume[2:]) == ("configuration", accepted, show)


def test_the_code_of_several_processes_is_that_of_the_command(
    given: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "on_several_processes", lambda config, words: 75)
    assert main(["resume"]) == 75
    assert [(call[0], call[-1]) for call in given] == [("find", None)]
