"""What rank 0 and its agent learn from each other; the agent itself is in test_launch.py."""

import os
import signal
import threading
from pathlib import Path

import pytest

from infrastructure.commands import main as main_module
from infrastructure.commands import train
from infrastructure.core import agent
from infrastructure.core.agent import (
    AGENT_VARIABLE,
    SPENT_VARIABLE,
    AgentFolder,
    agent_folder,
    agent_variable,
    time_left,
)
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.exit_codes import exit_code_of_signal
from infrastructure.core.stop_signals import StopSignal


def test_rank_0_of_an_agent_alone_has_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it starts inherits the variable, and may run a command of its own."""
    assert agent_folder() is None
    for name, value in agent_variable(AgentFolder(tmp_path)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANK", "0")
    assert agent_folder() is None
    pid = os.getpid()
    monkeypatch.setattr(os, "getppid", lambda: pid)
    assert agent_folder() == AgentFolder(tmp_path)
    monkeypatch.setenv("RANK", "1")
    assert agent_folder() is None


def test_the_first_run_counts_and_the_last_end(tmp_path: Path) -> None:
    folder = AgentFolder(tmp_path)
    assert (folder.run, folder.newest_at_first, folder.exit_code, folder.loss) == (None,) * 4
    folder.note_run(tmp_path / "first", "a version")
    folder.note_run(tmp_path / "second", "another")
    folder.note_exit_code(3)
    folder.note_loss("rank 1 is gone")
    folder.note_last_lines(["Stopped", "Cost"])
    assert (folder.run, folder.newest_at_first) == (tmp_path / "first", "a version")
    assert (folder.exit_code, folder.loss) == (3, "rank 1 is gone")
    assert folder.last_lines == ["Stopped", "Cost"]
    folder.forget_end()
    assert (folder.run, folder.exit_code, folder.loss) == (tmp_path / "first", None, None)
    assert folder.last_lines == []


def test_a_deadline_counts_from_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (time_left(None), time_left(60.0)) == (None, 60.0)
    monkeypatch.setenv(SPENT_VARIABLE, "45.5")
    assert (time_left(None), time_left(60.0)) == (None, 14.5)


@pytest.mark.parametrize(("name", "is_left"), [("SIGTERM", True), ("SIGINT", False)])
def test_only_an_agent_knows_whether_sigterm_ends_the_training(
    name: str,
    is_left: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It sends one where another rank is lost, and goes on."""

    def run(_: object) -> int:
        raise StopSignal(signal.Signals[name])

    monkeypatch.setattr(train, "run", run)
    monkeypatch.setenv(AGENT_VARIABLE, f"{os.getppid()} {tmp_path}")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(main_module, "take_usr1_as_sigterm", do_nothing)
    assert main_module.main(["train"]) == exit_code_of_signal(name)
    folder = AgentFolder(tmp_path)
    line = "temper: interruptedcommands.interrupted_how_to_resume()"
    assert folder.last_lines == ([line] if is_left else [])
    assert ("interrupted" in capsys.readouterr().err) is not is_left


def test_a_rank_ends_when_its_agent_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, sent, parents = threading.Event(), list[tuple[int, int]](), iter([7, 7, 7, 1])
    monkeypatch.setattr(agent, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "kill", lambda *given: (sent.append(given), ended.set()))
    monkeypatch.delenv(agent.STARTED_BY_TORCHRUN, raising=False)
    agent.end_with_agent()
    assert next(parents) == 7, "it has no agent"
    monkeypatch.setenv(agent.STARTED_BY_TORCHRUN, "a run")
    agent.end_with_agent()
    assert ended.wait(10)
    assert sent == [(os.getpid(), signal.SIGTERM)]


def test_lines_are_left_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not agent.left_to_agent(["Stopped"], "SIGTERM"), "there is no agent"
    monkeypatch.setenv(AGENT_VARIABLE, f"{os.getppid()} {tmp_path}")
    monkeypatch.setenv("RANK", "0")
    assert not agent.left_to_agent(["Stopped"], None)
    assert agent.left_to_agent(["Stopped", "token=abcdefgh123"], "SIGTERM")
    assert AgentFolder(tmp_path).last_lines == ["Stopped", "token=***"]
