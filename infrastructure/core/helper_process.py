"""Helper processes: other Python processes that run a module of this package.

A helper imports the same modules as this process, whichever folder it is started in, even if the
user's folder contains a package `infrastructure`, a `torch.py` or a `json.py`. The last lines of
its standard error are kept, so that an error message can say why a helper died.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import context, popen_spawn_posix, spawn
from pathlib import Path
from typing import IO, Any

from infrastructure.core import helper_main
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact
from infrastructure.core.registry import PLUGINS_VARIABLE, registered_addresses

PACKAGE = "infrastructure"
PACKAGE_PARENT = Path(__file__).resolve().parents[2]
SAFE_PATH = "PYTHONSAFEPATH"
KEPT_BYTES = 8192
LONGEST_WORDS = 300  # in characters
LAST_WORDS_SECONDS = 1.0  # to read what a dead helper wrote


class HelperProcess(subprocess.Popen[bytes]):
    """A module of this package, running in its own Python process.

    Args:
        module: the full name of the module, which runs as `__main__`.
        arguments: the command line arguments.
        stderr: the destination of the standard error; with PIPE, its last lines are kept in this
            object.
        shows_words: whether to copy the helper's standard error to that of this process.
        own_session: start the helper in its own session, so that signals to this process's group,
            such as Ctrl-C in a terminal, do not reach it.
        environment: environment variables in addition to those of this process.
        pass_fds: file descriptors that the helper inherits.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.DEVNULL,
        stderr: int = subprocess.PIPE,
        shows_words: bool = False,
        own_session: bool = True,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._words = b""
        self._reader: threading.Thread | None = None
        super().__init__(
            [sys.executable, *module_arguments(module), *arguments],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=own_session,
            env={**os.environ, **(environment or {}), **module_variables()},
        )
        if self.stderr is not None:
            read = threading.Thread(
                target=self._read, args=(self.stderr, shows_words), daemon=True, name="helper-words"
            )
            self._reader = read
            read.start()

    @property
    def last_words(self) -> str:
        """The last line on the helper's standard error, with secrets masked; "" if there is none.

        If Python ends with an exception, this line is the type and text of the exception.
        """
        if self._reader is not None and self.poll() is not None:
            self._reader.join(LAST_WORDS_SECONDS)
        return last_line(self._words)

    def ends_within(self, seconds: float) -> bool:
        """Wait at most `seconds` for the helper to end. Return whether it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(seconds)
        return self.poll() is not None

    def close_pipes(self) -> None:
        """Close the helper's input and output, and discard what is left in them.

        A helper that reads its input ends when the input is closed.
        """
        for pipe in (self.stdin, self.stdout):
            with suppress(OSError, ValueError):  # bytes that were never read; a busy reader
                if pipe is not None:
                    pipe.close()

    def fate(self, patience_seconds: float = 0.0) -> str | None:
        """Return how the helper ended, with its last line; None if it is still running.

        Wait at most `patience_seconds` for it to end.
        """
        self.ends_within(patience_seconds)
        code = self.poll()
        if code is None:
            return None
        return fate_of(code, self.last_words)

    def _read(self, stream: IO[bytes], shows_words: bool) -> None:
        with stream, suppress(OSError, ValueError):  # ValueError: closed in the meantime
            while piece := os.read(stream.fileno(), KEPT_BYTES):
                self._words = (self._words + piece)[-KEPT_BYTES:]
                if shows_words:
                    with suppress(OSError):  # a closed terminal
                        os.write(2, piece)


def module_arguments(module: str) -> list[str]:
    """Return the command-line arguments with which Python runs `module` as a helper.

    The process also needs the environment variables from `module_variables`.
    """
    return ["-P", helper_main.__file__, module]


def module_variables() -> dict[str, str]:
    """Return the environment variables that let a helper find the modules of this process."""
    return {
        helper_main.PATH_VARIABLE: "\n".join(module_path()),
        PLUGINS_VARIABLE: registered_addresses(),
    }


def fate_of(code: int, words: str = "") -> str:
    """Describe how a process ended, from its return code and the last line that it wrote."""
    if code < 0:
        return phrase("core.killed_by_signal", signal=signal.Signals(-code).name)
    return phrase("core.ended_with_exit_code", code=code, output=f" ({words})" if words else "")


def last_line(words: bytes) -> str:
    """Return the last line that is not blank, with secrets masked, or "" if there is none."""
    lines = words.decode(errors="replace").split("\n")
    spoken = [line.strip() for line in lines if line.strip()]
    return redact(spoken[-1])[:LONGEST_WORDS] if spoken else ""


def module_path() -> list[str]:
    """Return the folders in which a helper looks for modules.

    These are the folders in this process's `sys.path`, in a different order. The folders that
    Python itself puts first, such as the script's folder, come last. The folder that contains this
    package comes before any other folder with a package of the same name.
    """
    own, current = str(PACKAGE_PARENT), str(Path.cwd())
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    by_chance = {_real(current)}
    if main:
        by_chance.add(_real(str(Path(main).parent)))
    entries = [entry or current for entry in sys.path if isinstance(entry, str)]
    entries = [str(Path(entry).absolute()) for entry in entries]
    path = [entry for entry in entries if _real(entry) not in by_chance]
    holders = (i for i, entry in enumerate(path) if Path(entry, PACKAGE).exists())
    path.insert(next(holders, len(path)), own)
    return list(dict.fromkeys([*path, *entries]))


def _real(path: str) -> str:
    return os.path.realpath(path)


def worker_pool(
    num_processes: int,
    initializer: Callable[..., None],
    arguments: tuple[object, ...],
    *,
    imports_main: bool = False,
) -> ProcessPoolExecutor:
    """Create a pool of processes that call functions of this package.

    All processes start at the first call. They are spawned, because forking a process with threads
    may hang.

    Args:
        imports_main: also import the user's script in the processes, because it defines objects
            that are passed to them. A script that trains outside `if __name__ == "__main__":` would
            train again in each process.
    """
    kind = _WorkerContextWithMain() if imports_main else _WorkerContext()
    with _modules_found():  # creating its locks starts a process, too
        return _WorkerPool(num_processes, kind, initializer=initializer, initargs=arguments)


def refuse_to_train_in_worker() -> None:
    """Raise an error if this process is a worker that only imports the user's script.

    Raises:
        RuntimeError: if this process is such a worker; the script then trains as soon as it is
            imported.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(phrase("core.script_trains_when_imported"))


class _WorkerPool(ProcessPoolExecutor):
    """A pool that starts all its processes before it begins to watch them.

    In Python 3.11 to 3.13, if a process dies while another one is being started, the thread that
    watches them ends with "dictionary changed size during iteration". The new process then never
    ends, and Python waits for it at exit. Python avoids this only for forked processes.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._safe_to_dynamically_spawn_children = False


class _WorkerPopen(popen_spawn_posix.Popen):
    """A process of a pool, which finds the same modules as a helper process."""

    def _launch(self, process_obj: Any) -> None:
        with _modules_found(imports_main=process_obj.imports_main):
            super()._launch(process_obj)  # type: ignore[misc]


class _Worker(context.SpawnProcess):
    imports_main = False

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802
        return _WorkerPopen(process_obj)


class _WorkerWithMain(_Worker):
    imports_main = True


class _WorkerContext(context.SpawnContext):
    Process = _Worker


class _WorkerContextWithMain(context.SpawnContext):
    Process = _WorkerWithMain


_STARTING = threading.RLock()
MAIN_KEYS = ("init_main_from_name", "init_main_from_path")  # with these, spawn imports the script


@contextmanager
def _modules_found(*, imports_main: bool = False) -> Iterator[None]:
    """Let processes that `multiprocessing` starts in the block find modules as a helper does.

    `multiprocessing` has no parameter for this. Its processes first search the current folder, and
    then use the path of this process.
    """
    get_original_data = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, object]:
        data = {**get_original_data(name), "sys_path": module_path()}
        return data if imports_main else {k: v for k, v in data.items() if k not in MAIN_KEYS}

    with _STARTING:
        before = {name: os.environ.get(name) for name in (SAFE_PATH, PLUGINS_VARIABLE)}
        os.environ |= {SAFE_PATH: "1", PLUGINS_VARIABLE: registered_addresses()}
        spawn.get_preparation_data = get_preparation_data
        try:
            yield
        finally:
            spawn.get_preparation_data = get_original_data
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name)
                else:
                    os.environ[name] = value
