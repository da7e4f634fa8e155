"""Runs an environment's pip: its words into a log, one living line in a terminal, a clear error.

Standard library only: it runs before anything is installed.
"""

import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NUM_ERROR_LINES = 12
PROBE_LIMITS = ("--timeout", "8", "--retries", "1")  # an index out of reach costs seconds only
# Settings of the shell that would make pip look at, or install into, another place.
FOREIGN_SETTINGS = ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")


class InstallError(Exception):
    """The environment cannot be made; the text is for the person who asked for it."""


def say(text: str, end: str = "\n") -> None:
    """Tell the person, at once; on standard error, which leaves standard output to the command."""
    print(text, end=end, file=sys.stderr, flush=True)


@contextmanager
def step(title: str) -> Iterator[Callable[[str], None]]:
    """Say what is being done, then how long it took; yields a way to show what is going on now.

    What is shown passes by on the step's own line in a terminal; elsewhere it is not shown.
    """
    started = time.monotonic()
    living = sys.stderr.isatty()

    def show(detail: str) -> None:
        if living:
            width = shutil.get_terminal_size().columns - 1
            say("\r\033[K" + f"  {title} … {detail}"[:width], end="")

    say(f"  {title} …", end="")
    try:
        yield show
    except BaseException:
        say(" not finished")
        raise
    clear = "\r\033[K" + f"  {title} …" if living else ""
    say(f"{clear} {time.monotonic() - started:.0f} s")


@dataclass(frozen=True)
class Pip:
    """The pip of the environment whose Python is `python`."""

    python: Path
    log: Path

    def install(self, title: str, *arguments: str) -> None:
        """Run `pip install` with pip's own configuration, as the step `title`.

        Raises:
            InstallError: pip failed; the text ends with its last lines.
        """
        # Python compiles what is imported when it is: that is a fifth of the files, later.
        self._do(title, "install", "--no-input", "--progress-bar=off", "--no-compile", *arguments)

    def uninstall(self, title: str, package: str) -> None:
        """Run `pip uninstall`, as the step `title`.

        Raises:
            InstallError: as for `install`.
        """
        self._do(title, "uninstall", "--yes", package)

    def offers(self, requirement: str, *index: str) -> bool:
        """Whether there is a wheel of `requirement` for this Python; gives up within seconds."""
        wheels = ["--no-deps", "--ignore-installed", "--only-binary=:all:", *PROBE_LIMITS]
        probe = ("install", "--no-input", "--dry-run", *wheels, *index, requirement)
        code, _ = self._run(probe, show=lambda line: None)
        return code == 0

    def _do(self, title: str, *arguments: str) -> None:
        with step(title) as show:
            code, last_lines = self._run(arguments, show)
            if code != 0:
                raise InstallError(
                    f"pip {' '.join(arguments)} failed; its last words, the rest is in "
                    f"{self.log}:\n" + "\n".join(f"    {line}" for line in last_lines)
                )

    def _run(self, arguments: Sequence[str], show: Callable[[str], None]) -> tuple[int, list[str]]:
        """The exit code and the last lines of what was said. A stop of ours stops pip too."""
        command = [str(self.python), "-P", "-m", "pip", *arguments]
        last_lines: deque[str] = deque(maxlen=NUM_ERROR_LINES)
        with (
            self.log.open("a") as log,
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=_environment(),
                close_fds=False,  # the lock of `only_one_installer` is held as long as pip runs
            ) as process,
        ):
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    log.write(line)
                    last_lines.append(line.rstrip())
                    show(line.strip())
            except BaseException:
                process.terminate()
                raise
        return process.returncode, list(last_lines)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN_SETTINGS}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}
