"""Messages from rank 0 of a distributed run to the agent, the process that started the ranks.

The agent (`training/distributed/launch.py`) starts the ranks, and restarts them when one dies. It
shares a private folder with the ranks. From the files in this folder, a restart knows which run to
resume, and the agent knows how rank 0 ended, even if another rank died first.
"""

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from infrastructure.core.files import write_text
from infrastructure.core.redact import redact

AGENT_VARIABLE = "_TEMPER_AGENT"  # PID of the agent, and its folder
SPENT_VARIABLE = "_TEMPER_SPENT_SECONDS"
STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"  # Temper's agent sets it, too
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class AgentFolder:
    """The folder in which rank 0 leaves messages. Only the agent and its ranks use it."""

    path: Path

    @property
    def run(self) -> Path | None:
        """The directory of the run that rank 0 trains; None before it exists."""
        text = self._read("run")
        return None if text is None else Path(text)

    @property
    def newest_at_first(self) -> str | None:
        """The run's newest checkpoint when the command began, or "" if there was none."""
        return self._read("newest_at_first")

    @property
    def exit_code(self) -> int | None:
        """The exit code of rank 0, or None if rank 0 died before it could record one."""
        text = self._read("exit_code")
        return None if text is None else int(text)

    @property
    def loss(self) -> str | None:
        """The message in which rank 0 reported the loss of another process; None if there
        is none.
        """
        return self._read("loss")

    @property
    def last_lines(self) -> list[str]:
        """The closing lines that rank 0 has left for the agent to show; see `left_to_agent`."""
        return (self._read("last_lines") or "").splitlines()

    def note_run(self, run_path: Path, newest: str) -> None:
        """Record the run that rank 0 trains, and its newest checkpoint. Ignore a second call."""
        if self.run is None:
            write_text(self.path / "newest_at_first", newest)
            write_text(self.path / "run", str(run_path.absolute()))

    def note_exit_code(self, code: int) -> None:
        write_text(self.path / "exit_code", str(int(code)))

    def note_loss(self, text: str) -> None:
        write_text(self.path / "loss", text)

    def note_last_lines(self, lines: Sequence[str]) -> None:
        write_text(self.path / "last_lines", "\n".join(lines))

    def forget_end(self) -> None:
        """Remove the records of how rank 0 ended, before it is restarted."""
        for name in ("exit_code", "loss", "last_lines"):
            (self.path / name).unlink(missing_ok=True)

    def _read(self, name: str) -> str | None:
        with suppress(OSError):
            return (self.path / name).read_text()
        return None


def agent_variable(folder: AgentFolder) -> dict[str, str]:
    """Return the environment variable through which child processes of this one find `folder`."""
    return {AGENT_VARIABLE: f"{os.getpid()} {folder.path}"}


def agent_folder() -> AgentFolder | None:
    """Return the folder of the agent that started this process as rank 0.

    Return None if there is no agent, or if this process is another rank or was started by a rank.
    """
    pid, _, path = os.environ.get(AGENT_VARIABLE, "").partition(" ")
    is_rank_0 = pid == str(os.getppid()) and os.environ.get("RANK") == "0"
    return AgentFolder(Path(path)) if is_rank_0 else None


def left_to_agent(lines: Sequence[str], signal_name: str | None) -> bool:
    """Pass closing lines to the agent, if this process is rank 0 and was stopped by SIGTERM.

    The agent shows the lines if the user stopped the run. It does not show them if it sent SIGTERM
    itself in order to restart all ranks after another rank died.

    Returns:
        True if the lines were passed on, so that this process need not show them.
    """
    agent = agent_folder()
    if agent is None or signal_name != signal.SIGTERM.name:
        return False
    agent.note_last_lines([redact(line) for line in lines])
    return True


def time_left(seconds: float | None) -> float | None:
    """Return the remaining seconds of a command's time limit; None if there is no limit.

    If the processes of the command are restarted, the limit continues.
    """
    return None if seconds is None else seconds - float(os.environ.get(SPENT_VARIABLE) or 0.0)


def end_with_agent() -> None:
    """Watch the agent in a thread, and send SIGTERM to this process when the agent has died.

    The process then saves and stops, instead of training without its agent.
    """
    if STARTED_BY_TORCHRUN not in os.environ:
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="temper-agent").start()
