"""The installation of packages into an environment, with uv if it is available, else with pip.

The output of uv or pip goes to a log. The terminal shows a line of progress, or a message if an
error occurs. uv receives pip's configuration, so both use the same sources, and the same
requirements lead to the same packages. If uv fails, pip is used. The variable TEMPER_INSTALLER
(`uv` or `pip`) selects an installer. This module uses only the standard library, because it runs
before anything is installed.
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
from urllib.parse import urlsplit
from urllib.request import url2pathname

from infrastructure.core.errors import Problem
from infrastructure.core.messages import phrase

NUM_ERROR_LINES = 12
PROBE_LIMITS = ("--timeout", "8", "--retries", "1")  # an unreachable index costs only seconds
# Settings of the shell that would make pip or uv inspect, or install into, another environment.
FOREIGN_SETTINGS = (
    *("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"),
    *("UV_SYSTEM_PYTHON", "UV_PYTHON", "UV_TARGET", "UV_PREFIX"),  # Colab sets the first
)
CHOICE = "TEMPER_INSTALLER"
OLDEST_UV = (0, 5)  # the first that supports UV_INDEX
# pip settings as environment variables of uv: a URL may contain a password, and other users can see
# command-line options.
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
# pip settings that do not affect what is installed; with any other setting, pip installs.
NO_MATTER = {
    *("disable-pip-version-check", "no-input", "no-color", "progress-bar", "quiet", "verbose"),
    *("cache-dir", "no-cache-dir", "root-user-action", "no-warn-script-location", "log", "retries"),
    *("config-file", "no-compile", "user", "target", "prefix", "root", "require-virtualenv"),
}


class InstallError(Problem):
    """An error for an environment that cannot be created. The message is for the user."""


def report(text: str, end: str = "\n") -> None:
    """Print a message on standard error, because standard output is for results of commands."""
    print(text, end=end, file=sys.stderr, flush=True)


@contextmanager
def step(title: str) -> Iterator[Callable[[str], None]]:
    """Print the title of a step, and then its duration. Yield a function that shows progress.

    Progress is shown on the step's own line, and only in a terminal.
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


def installer_for(python: Path, log: Path) -> "Installer":
    """Return the installer for the environment whose Python is `python`.

    Raises:
        InstallError: if TEMPER_INSTALLER requires uv, which was not found, or has an unknown value.
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
    """Return the path of uv if it is on PATH, runs and is recent enough."""
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
        """Install packages, and show `title` as the name of the step.

        Args:
            arguments: requirements and options that both `pip install` and uv support.

        Raises:
            InstallError: if the installation failed; the message ends with the last lines of
                output.
        """
        # Python compiles a module when it is first imported; only a fifth of the files ever are.
        options = ("--no-input", "--progress-bar=off", "--no-compile")
        self._do(title, "install", *options, *arguments)

    def uninstall(self, title: str, package: str) -> None:
        """Remove a package, and show `title` as the name of the step.

        Raises:
            InstallError: as for `install`.
        """
        self._do(title, "uninstall", "--yes", package)

    def offers(self, requirement: str, *index: str) -> bool:
        """Return whether a package index has a wheel of `requirement` for this Python. This takes
        seconds.
        """
        wheels = ["--no-deps", "--ignore-installed", "--only-binary=:all:", *PROBE_LIMITS]
        probe = ("install", "--no-input", "--dry-run", *wheels, *index, requirement)
        return run(self._command(*probe), self.log, _variables())[0] == 0

    def settings(self) -> dict[str, str]:
        """Return pip's configuration for `pip install`, from files and environment variables."""
        answer = subprocess.run(
            self._command("config", "list"),
            capture_output=True,  # not into the log: a URL may contain a password
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
    """The program uv, for the environment whose Python is `python`, with the methods of `Pip`.

    Attributes:
        settings: pip's settings, which uv does not read.
    """

    program: str
    python: Path
    log: Path
    settings: Mapping[str, str]

    def install(self, title: str, *arguments: str) -> None:
        # An editable package is rebuilt: its metadata may have changed, which uv does not detect.
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
        """Return the environment variables for uv. The user's settings of uv override those
        of pip.
        """
        environment = _variables()
        for name, variable in UV_VARIABLES.items():
            values = self.settings.get(name, "").split()
            if name in PATHS:
                values = [v if "://" in v else str(Path(v).expanduser().absolute()) for v in values]
            if name == "find-links":  # pip ignores a folder that does not exist
                values = [v for v in values if not _is_missing_folder(v)]
            if values:
                separator = "," if name == "find-links" else " "
                environment.setdefault(variable, separator.join(values))
        if "--index-url" in arguments:  # it replaces the default index
            environment.pop("UV_DEFAULT_INDEX", None)
        return {**environment, "UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"}

    def _command(self, action: str, *arguments: str) -> list[str]:
        options = ["--python", str(self.python)]
        if action == "install":  # like pip, take the best version of all indexes
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
    """An installer that uses uv; if uv fails, it uses pip. It has the methods of `Pip`."""

    uv: Uv
    pip: Pip

    def install(self, title: str, *arguments: str) -> None:
        try:
            self.uv.install(title, *arguments)
        except InstallError:
            report(phrase("deployment.uv_failed", log=self.uv.log))
            self.pip.install(title, *arguments)

    def uninstall(self, title: str, package: str) -> None:
        try:
            self.uv.uninstall(title, package)
        except InstallError:
            self.pip.uninstall(title, package)

    def offers(self, requirement: str, *index: str) -> bool:
        return self.uv.offers(requirement, *index) or self.pip.offers(requirement, *index)


Installer = Pip | Uv | UvElsePip


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
    """Run a command, and return its exit code and last lines of output.

    If this function is interrupted, the command is stopped, too.

    Args:
        cwd: the folder in which the command runs; by default, the current one. In a project's
            folder, uv would use that project's settings.
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
            close_fds=False,  # it holds the lock of `only_one_installer` while it runs
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
    """Check that the exit code of a command is 0.

    Raises:
        InstallError: if the code is not 0; the message has the last lines of output.
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
