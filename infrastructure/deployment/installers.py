"""Installs packages into an environment: with uv where it is found, else with pip.

Either's words go into a log, one living line into a terminal, an error is a clear sentence. uv is
given pip's own configuration, so both look in the same places and the same requirements come to
the same packages; what uv cannot do, pip does. TEMPER_INSTALLER (`uv`, `pip`) takes one of them.
Standard library only: it runs before anything is installed.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

from infrastructure.core.errors import Problem

NUM_ERROR_LINES = 12
PROBE_LIMITS = ("--timeout", "8", "--retries", "1")  # an index out of reach costs seconds only
# Settings of the shell that would make pip or uv look at, or install into, another place.
FOREIGN_SETTINGS = (
    *("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"),
    *("UV_SYSTEM_PYTHON", "UV_PYTHON", "UV_TARGET", "UV_PREFIX"),  # Colab sets the first
)
CHOICE = "TEMPER_INSTALLER"
OLDEST_UV = (0, 5)  # knows UV_INDEX
# Settings of pip as variables of uv: an address may hold a password, and options are seen by all.
UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
PATHS = ("find-links", "constraint", "cert")
# Settings of pip that change nothing of what is installed; with any other, pip installs.
NO_MATTER = {
    *("disable-pip-version-check", "no-input", "no-color", "progress-bar", "quiet", "verbose"),
    *("cache-dir", "no-cache-dir", "root-user-action", "no-warn-script-location", "log", "retries"),
    *("config-file", "no-compile", "user", "target", "prefix", "root", "require-virtualenv"),
}


class InstallError(Problem):
    """The environment cannot be made; the text is for the person who asked for it."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the text alone."""
        return [f"{type(self).__name__}: {self}"]


def report(text: str, end: str = "\n") -> None:
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
            report("\r\033[K" + f"  {title} … {detail}"[:width], end="")

    report(f"  {title} …", end="")
    try:
        yield show
    except BaseException:
        report(" not finished")
        raise
    clear = "\r\033[K" + f"  {title} …" if living else ""
    report(f"{clear} {time.monotonic() - started:.0f} s")


class Installer(Protocol):
    """Changes the packages of one environment."""

    def install(self, title: str, *arguments: str) -> None:
        """Install, as the step `title`.

        Args:
            arguments: requirements and options that `pip install` knows, and uv too.

        Raises:
            InstallError: it failed; the text ends with the last lines of what was said.
        """

    def uninstall(self, title: str, package: str) -> None:
        """Remove a package, as the step `title`.

        Raises:
            InstallError: as for `install`.
        """

    def offers(self, requirement: str, *index: str) -> bool:
        """Whether there is a wheel of `requirement` for this Python; gives up within seconds."""


def installer_for(python: Path, log: Path) -> Installer:
    """What installs into the environment whose Python is `python`.

    Raises:
        InstallError: TEMPER_INSTALLER asks for a uv that is not there, or for something else.
    """
    pip = Pip(python, log)
    choice = os.environ.get(CHOICE, "").strip().lower() or "auto"
    if choice not in ("auto", "uv", "pip"):
        raise InstallError("deployment.unknown_installer", variable=CHOICE, value=choice)
    program = None if choice == "pip" else find_uv()
    if program is None:
        if choice == "uv":
            oldest = ".".join(map(str, OLDEST_UV))
            raise InstallError("deployment.uv_not_found", variable=CHOICE, oldest=oldest)
        return pip
    settings = pip.settings()
    uv = Uv(program, python, log, settings)
    if choice == "uv":
        return uv
    is_understood = settings.keys() <= UV_VARIABLES.keys() | {"no-index"} | NO_MATTER
    return UvElsePip(uv, pip) if is_understood else pip


def find_uv() -> str | None:
    """The program uv on PATH, where it runs and is new enough."""
    program = shutil.which("uv")
    if program is None:
        return None
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):  # such as a program for another machine
        return None
    version = re.match(r"uv (\d+)\.(\d+)", answer.stdout)
    return program if version and (int(version[1]), int(version[2])) >= OLDEST_UV else None


@dataclass(frozen=True)
class Pip:
    """The pip of the environment whose Python is `python`."""

    python: Path
    log: Path

    def install(self, title: str, *arguments: str) -> None:
        # Python compiles what is imported when it is: that is a fifth of the files, later.
        options = ("--no-input", "--progress-bar=off", "--no-compile")
        self._do(title, "install", *options, *arguments)

    def uninstall(self, title: str, package: str) -> None:
        self._do(title, "uninstall", "--yes", package)

    def offers(self, requirement: str, *index: str) -> bool:
        wheels = ["--no-deps", "--ignore-installed", "--only-binary=:all:", *PROBE_LIMITS]
        probe = ("install", "--no-input", "--dry-run", *wheels, *index, requirement)
        return run(self._command(*probe), self.log, _variables())[0] == 0

    def settings(self) -> dict[str, str]:
        """pip's configuration, from files and variables, as far as it is for `pip install`."""
        answer = subprocess.run(
            self._command("config", "list"),
            capture_output=True,  # not into the log: an address may hold a password
            text=True,
            env=_variables(),
            check=False,
        )
        sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
        for line in answer.stdout.splitlines():
            name, _, value = line.partition("=")
            section, _, key = name.rpartition(".")
            if section in sections:
                sections[section][key] = str(ast.literal_eval(value))
        return {key: value for section in sections.values() for key, value in section.items()}

    def _command(self, *arguments: str) -> list[str]:
        return [str(self.python), "-P", "-m", "pip", *arguments]

    def _do(self, title: str, *arguments: str) -> None:
        with step(title) as show:
            code, last_lines = run(self._command(*arguments), self.log, _variables(), show)
            check(code, f"pip {' '.join(arguments)}", last_lines, self.log)


@dataclass(frozen=True)
class Uv:
    """The program uv, for the environment whose Python is `python`.

    Attributes:
        settings: of pip, which uv does not read.
    """

    program: str
    python: Path
    log: Path
    settings: Mapping[str, str]

    def install(self, title: str, *arguments: str) -> None:
        # An editable package is built anew: its metadata may have changed, which uv does not see.
        anew = ("--reinstall",) if "--editable" in arguments else ()
        self._do(title, "install", *anew, *arguments)

    def uninstall(self, title: str, package: str) -> None:
        self._do(title, "uninstall", package)

    def offers(self, requirement: str, *index: str) -> bool:
        wheels = ("--dry-run", "--no-deps", "--reinstall", "--only-binary", ":all:")
        command = self._command("install", *wheels, *index, requirement)
        quick = {"UV_HTTP_TIMEOUT": "8", "UV_HTTP_RETRIES": "1"}
        return run(command, self.log, {**self.variables(*index), **quick})[0] == 0

    def variables(self, *arguments: str) -> dict[str, str]:
        """Of uv's process: pip's settings, unless there is one for uv itself."""
        environment = _variables()
        for name, variable in UV_VARIABLES.items():
            values = self.settings.get(name, "").split()
            if name in PATHS:
                values = [v if "://" in v else str(Path(v).expanduser().absolute()) for v in values]
            if name == "find-links":  # pip passes over a folder that is not there
                values = [v for v in values if not _is_missing_folder(v)]
            if values:
                separator = "," if name == "find-links" else " "
                environment.setdefault(variable, separator.join(values))
        if "--index-url" in arguments:  # in place of the usual one
            environment.pop("UV_DEFAULT_INDEX", None)
        return {**environment, "UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"}

    def _command(self, action: str, *arguments: str) -> list[str]:
        options = ["--python", str(self.python)]
        if action == "install":  # pip, too, takes the best version of all its sources
            options += ["--no-progress", "--index-strategy", "unsafe-best-match"]
            if self.settings.get("no-index", "").strip().lower() in ("1", "true", "yes", "on"):
                options.append("--no-index")
        return [self.program, "pip", action, *options, *arguments]

    def _do(self, title: str, action: str, *arguments: str) -> None:
        with step(title) as show:
            command, variables = self._command(action, *arguments), self.variables(*arguments)
            code, last_lines = run(command, self.log, variables, show, cwd=self.log.parent)
            check(code, f"uv pip {action} {' '.join(arguments)}", last_lines, self.log)


@dataclass(frozen=True)
class UvElsePip:
    """uv; and pip where uv fails, so that nothing depends on uv."""

    uv: Uv
    pip: Pip

    def install(self, title: str, *arguments: str) -> None:
        try:
            self.uv.install(title, *arguments)
        except InstallError:
            report(f"  uv could not do that ({self.uv.log} says why); now with pip")
            self.pip.install(title, *arguments)

    def uninstall(self, title: str, package: str) -> None:
        try:
            self.uv.uninstall(title, package)
        except InstallError:
            self.pip.uninstall(title, package)

    def offers(self, requirement: str, *index: str) -> bool:
        return self.uv.offers(requirement, *index) or self.pip.offers(requirement, *index)


def _is_missing_folder(place: str) -> bool:
    is_local = place.startswith(("/", "file://"))
    return is_local and not Path(url2pathname(urlsplit(place).path)).exists()


def run(
    command: Sequence[str],
    log_file: Path,
    variables: Mapping[str, str],
    show: Callable[[str], None] | None = None,
    cwd: Path | None = None,
) -> tuple[int, list[str]]:
    """The exit code and the last lines of what was said. A stop of ours stops the program too.

    Args:
        cwd: None: where this runs. uv would find the settings of a project that this is in.
    """
    last_lines: deque[str] = deque(maxlen=NUM_ERROR_LINES)
    with (
        log_file.open("a") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=variables,
            cwd=cwd,
            close_fds=False,  # the lock of `only_one_installer` is held as long as it runs
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line)
                last_lines.append(line.rstrip())
                if show is not None:
                    show(line.strip())
        except BaseException:
            process.terminate()
            raise
    return process.returncode, list(last_lines)


def check(code: int, what: str, last_lines: Sequence[str], log: Path) -> None:
    """Refuse an exit code that is not 0.

    Raises:
        InstallError: with the last lines of what was said.
    """
    if code != 0:
        raise InstallError(
            "deployment.command_failed",
            command=what,
            log=log,
            last_lines="\n".join(f"    {line}" for line in last_lines),
        )


def _variables() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN_SETTINGS}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}
