"""What rank 0 of a training tells the agent that started it, and learns from it.

`training/distributed/launch.py` is the agent: it starts the ranks, and starts them again when one
is lost. They have a private folder in common: a restart goes on with the run that rank 0 had begun,
whatever the command line says, and the agent knows how rank 0 ended, whoever died beside it.
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

AGENT_VARIABLE = "_TEMPER_AGENT"  # its pid, and its folder
SPENT_VARIABLE = "_TEMPER_SPENT_SECONDS"
STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"  # which our agent sets as well
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class AgentFolder:
    """What rank 0 has told; `path` is a folder that only the agent and its ranks use."""

    path: Path

    @property
    def run(self) -> Path | None:
        """The directory of the run that rank 0 trains; None before it has one."""
        text = self._read("run")
        return None if text is None else Path(text)

    @property
    def newest_at_first(self) -> str | None:
        """The newest version when the run was begun or gone on with first; "" for none."""
        return self._read("newest_at_first")

    @property
    def exit_code(self) -> int | None:
        """Rank 0's; None where it did not come to its end."""
        text = self._read("exit_code")
        return None if text is None else int(text)

    @property
    def loss(self) -> str | None:
        """What rank 0 says of a process that it has lost."""
        return self._read("loss")

    @property
    def last_lines(self) -> list[str]:
        """What rank 0 would show a person of its end; see `left_to_agent`."""
        return (self._read("last_lines") or "").splitlines()

    def note_run(self, run_path: Path, newest: str) -> None:
        """Rank 0 trains this run, whose newest version is `newest`; a second call does nothing."""
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
        """Before rank 0 is started again."""
        for name in ("exit_code", "loss", "last_lines"):
            (self.path / name).unlink(missing_ok=True)

    def _read(self, name: str) -> str | None:
        with suppress(OSError):
            return (self.path / name).read_text()
        return None


def agent_variable(folder: AgentFolder) -> dict[str, str]:
    """The environment variable by which the processes that this one starts find `folder`."""
    return {AGENT_VARIABLE: f"{os.getpid()} {folder.path}"}


def agent_folder() -> AgentFolder | None:
    """That of the agent which has started this process as rank 0; None: there is none, or this is
    another rank, or what a rank has started."""
    pid, _, path = os.environ.get(AGENT_VARIABLE, "").partition(" ")
    is_rank_0 = pid == str(os.getppid()) and os.environ.get("RANK") == "0"
    return AgentFolder(Path(path)) if is_rank_0 else None


def left_to_agent(lines: Sequence[str], signal_name: str | None) -> bool:
    """Whether this is rank 0 of an agent, which shows the last `lines` then if a person has stopped
    the training: an agent sends SIGTERM where another rank was lost, too, and goes on."""
    agent = agent_folder()
    if agent is None or signal_name != signal.SIGTERM.name:
        return False
    agent.note_last_lines([redact(line) for line in lines])
    return True


def time_left(seconds: float | None) -> float | None:
    """Of a limit that began when the command was given, not when its processes were started again;
    None: there is no limit."""
    return None if seconds is None else seconds - float(os.environ.get(SPENT_VARIABLE) or 0.0)


def end_with_agent() -> None:
    """From here on, this process gets SIGTERM when the agent that started it has died: it saves
    and stops, and does not train on where nobody knows of it."""
    if STARTED_BY_TORCHRUN not in os.environ:
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="temper-agent").start()
