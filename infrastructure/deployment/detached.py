"""A run in a separate process that outlives the shell or the kernel that started it.

The process and those that watch it share these files:

    <output_dir>/.detached/<token>/trained_by     names the process that prepares or trains the run
                                  /purpose.json   the settings of the run, to detect the same run
                                  /output.txt     the output until the run has a directory
                                  /run            the path of the run's directory, once there is one
                                  /finished_before    exists if there was nothing to train

Once the run has a directory, the output goes to `logs/output.txt` in it. This module does not load
torch.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.fingerprint import differing_keys, result_settings
from infrastructure.config.merging.plugin_names import require_shareable
from infrastructure.config.merging.precedence import Layer
from infrastructure.config.sources.spelling import as_keyword
from infrastructure.core.console import waiting_beside
from infrastructure.core.errors import InputError, RunFailedError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.files import write_json
from infrastructure.core.helper_process import HelperProcess
from infrastructure.core.json_text import json_of
from infrastructure.core.lock import Lock
from infrastructure.core.messages import phrase, speller
from infrastructure.core.redact import redact
from infrastructure.data.defaults import make_ready
from infrastructure.monitoring.logging_config import OUTPUT_FILE
from infrastructure.monitoring.records.live_run import LiveRun
from infrastructure.monitoring.records.run_list import find_run_path
from infrastructure.monitoring.records.run_owner import (
    TrainerProcess,
    announce_stop,
    read_trainer,
    this_process,
    write_trainer,
)
from infrastructure.monitoring.records.status_text import progress_words
from infrastructure.run.latest_checkpoint import SavedSteps
from infrastructure.run.output_dir import writable

FOLDER, RUN_NAME, PURPOSE_NAME, OUTPUT_NAME = ".detached", "run", "purpose.json", "output.txt"
FINISHED_BEFORE_NAME = "finished_before"
LOOK_SECONDS = 0.1
STOP_SECONDS = 300.0  # saving, and copying to the backup destination, may take long
MAX_LINES_OF_FAILURE = 3
LAST_BYTES = 4096  # of an output file, which contain its last line

ReportLine = Callable[[str], None]

# Children of this process; a thread waits for the end of each, so that none stays a zombie.
_STARTED: dict[Path, HelperProcess] = {}


@dataclass(frozen=True)
class DetachedTraining:
    """A run that was started in its own process, which writes its status to `folder`."""

    folder: Path

    @property
    def trainer(self) -> TrainerProcess | None:
        return read_trainer(self.folder)

    @property
    def is_alive(self) -> bool:
        return self.trainer is not None and self.trainer.is_alive is True

    @property
    def run_path(self) -> Path | None:
        """The directory of the run, or None before it is known."""
        try:
            return Path((self.folder / RUN_NAME).read_text())
        except OSError:
            return None

    @property
    def was_finished_before(self) -> bool:
        """True if the run has a directory and was already finished when the process started."""
        return (self.folder / FINISHED_BEFORE_NAME).exists()

    def exit_code(self) -> int:
        """Wait for the process. Return its exit code, or FAILED if it is not a child process."""
        process = _STARTED.get(self.folder)
        return ExitCode.FAILED if process is None else process.wait()


def start(
    config: DeploymentConfig,
    accept: Collection[str] = (),
    folder: Path | None = None,
    run_path: Path | None = None,
    observer: tuple[str, Mapping[str, object]] | None = None,
) -> DetachedTraining:
    """Start `TrainingDeployment(config, accept).run()` in a process that outlives this one.

    The configuration is passed through a pipe, so that no secret is written to disk.

    Args:
        folder: the folder for the status files; by default, a new one.
        run_path: the directory of the run to resume; by default, the run is chosen as in `temper
            train`.
        observer: the address `module:function` of a function, and its argument. The new process
            calls the function, which returns a further observer of the run.

    Raises:
        ValueError: if the configuration cannot work, or the output folder is not writable.
    """
    make_ready(config)
    require_shareable(config)
    if folder is None:
        _forget_the_dead(Path(config.output_dir))
        folder = _new_folder(Path(config.output_dir))
    training = DetachedTraining(folder)
    write_json(training.folder / PURPOSE_NAME, result_settings(config))
    with (training.folder / OUTPUT_NAME).open("wb") as output:
        process = HelperProcess(
            "infrastructure",
            *("train-detached", str(training.folder)),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            environment={"PYTHONUNBUFFERED": "1"},
        )
    _STARTED[training.folder] = process
    threading.Thread(target=process.wait, daemon=True, name="temper-detached").start()
    write_trainer(training.folder, process.pid)
    message = {
        "configuration": _as_it_stands(config),
        "accept": list(accept),
        "run": None if run_path is None else str(run_path),
        "observer": observer,
        "environment_notes": config.environment_notes,
        "is_python": speller()("new_run", "") == as_keyword("new_run"),
    }
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as pipe:  # if it died, its output says why
        pipe.write(json.dumps(message).encode())
    return training


@contextmanager
def only_runner(path: Path, code: str, **about: object) -> Iterator[None]:
    """Hold the lock file `path` while the block starts several runs.

    Raises:
        ValueError: if another process holds the lock. The message is `code`, with the values
            `about` and the name of that process.
    """
    lock = Lock(path)
    try:
        if not lock.take(wait=False, where_there_are_none=True):
            raise InputError(code, holder=path.read_text() or "another process", **about)
        path.write_text(this_process())
        yield
    finally:
        lock.release()


def wait(training: DetachedTraining, look: Callable[[], None] = lambda: None) -> None:
    """Wait until the process has ended, and show its progress. Call `look` at intervals."""
    with closing(_Progress(training)) as progress, waiting_beside(progress.words):
        while training.is_alive:
            look()
            time.sleep(LOOK_SECONDS)


class _Progress:
    """A text about the progress of a run, for a line that is updated."""

    def __init__(self, training: DetachedTraining) -> None:
        self.training = training
        self._run: LiveRun | None = None

    def words(self) -> str:
        """Return text such as `training, step 120 of 500 · 24.0%; temper watch shows it`."""
        return phrase("deployment.detached_progress", steps=self._steps())

    def _steps(self) -> str:
        path = self.training.run_path
        try:
            if self._run is None and path is not None:
                self._run = LiveRun(path)
            elif self._run is not None:
                self._run.refresh()
        except (ValueError, OSError):  # it does not exist yet, or not any more
            return ""
        return "" if self._run is None else f", {progress_words(self._run)}"

    def close(self) -> None:
        if self._run is not None:
            self._run.close()


def _as_it_stands(config: DeploymentConfig) -> dict[str, object]:
    """Return the configuration with its secrets, for `DeploymentConfig.from_dict` via a pipe."""
    sources = {key: s for key, s in config.sources().items() if s.layer is not Layer.DEFAULT}
    return {
        "values": config.model_dump(mode="json"),
        "sources": {key: asdict(source) for key, source in sources.items()},
        "masked": [],
        **config.plugins_to_dict(),
    }


def _new_folder(output_dir: Path) -> Path:
    folder = writable(output_dir).absolute() / FOLDER / secrets.token_hex(4)
    folder.mkdir(parents=True)
    return folder


def _forget_the_dead(output_dir: Path) -> None:
    for training in _all_in(output_dir):
        if not training.is_alive:
            shutil.rmtree(training.folder, ignore_errors=True)
            _STARTED.pop(training.folder, None)


def _all_in(output_dir: Path) -> list[DetachedTraining]:
    folder = output_dir.absolute() / FOLDER
    return [DetachedTraining(path) for path in sorted(folder.glob("*/"))]


def preparing(output_dir: Path) -> list[DetachedTraining]:
    """Return the running processes that are preparing a run and have not created its
    directory yet.
    """
    return [one for one in _all_in(output_dir) if one.run_path is None and one.is_alive]


def preparing_the_same(config: DeploymentConfig) -> DetachedTraining | None:
    """Return a process that is preparing a run with the settings of `config`; None if there is
    none.
    """
    wanted = result_settings(config)
    for training in preparing(Path(config.output_dir)):
        recorded = json_of(training.folder / PURPOSE_NAME)  # {}: it is being written or removed
        if recorded and not any(differing_keys(recorded, wanted)):
            return training
    return None


def follow(
    training: DetachedTraining,
    report: ReportLine = print,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """Report the output of the process until its run has a directory, and return that directory.

    Raises:
        RunFailedError: if the process ended before that; the message is the end of its output.
        KeyboardInterrupt: if the user stopped waiting; the process continues.
    """
    lines: list[str] = []
    for line in _lines_until_known(training, sleep):
        report(line)
        lines.append(line)
    if training.run_path is None:
        end = " ".join(line.removeprefix("temper: ") for line in lines[-MAX_LINES_OF_FAILURE:])
        raise RunFailedError(
            "deployment.ended_before_training", reason=end or phrase("deployment.printed_nothing")
        )
    return training.run_path


def _lines_until_known(training: DetachedTraining, sleep: Callable[[float], None]) -> Iterator[str]:
    """Yield the process's lines of output until its run has a directory, or the process ends.

    The open file stays readable after the process removes it.
    """
    path = training.folder / OUTPUT_NAME
    if not path.exists():
        return
    rest = ""
    with path.open(encoding="utf-8", errors="replace") as output:
        is_over = False
        while not is_over:
            is_over = training.run_path is not None or not training.is_alive
            *lines, rest = (rest + output.read()).split("\n")
            yield from lines
            if not is_over:
                sleep(LOOK_SECONDS)
    if rest:
        yield rest


def named(run: str | None, output_dir: Path) -> Path | DetachedTraining:
    """Return the directory of a run; by default, the run being prepared, else the newest.

    Raises:
        ValueError: if there is no such run.
    """
    waiting = preparing(output_dir) if run is None else []
    return waiting[-1] if waiting else find_run_path(run, output_dir)


def stop(
    what: Path | DetachedTraining,
    report: ReportLine = print,
    patience_seconds: float = STOP_SECONDS,
) -> bool:
    """Make the process that trains or prepares a run save and stop, and wait for it.

    Args:
        what: the directory of the run, or the process that prepares it.

    Returns:
        True if the run is not training any more.

    Raises:
        ValueError: if the run is trained on another machine, or by another user's process.
    """
    if isinstance(what, DetachedTraining):
        end(what, patience_seconds)
        if what.run_path is None:
            report(phrase("deployment.stopped_before_training"))
            return not what.is_alive
        what = what.run_path  # it began in the meantime, and has saved
    run_path = what
    trainer = read_trainer(run_path)
    if trainer is None or trainer.is_alive is False:
        report(phrase("deployment.run_not_training", run=run_path.name))
        return True
    if not _end(run_path, trainer, patience_seconds):
        report(phrase("deployment.run_still_saving", run=run_path.name, process=trainer))
        return False
    saved = SavedSteps(run_path).newest()
    if saved is None:
        # In case the process took the first announcement: nothing else records how it ended.
        announce_stop(run_path, trainer.pid)
        report(phrase("deployment.stopped_without_checkpoint", process=trainer, run=run_path.name))
    else:
        report(
            phrase(
                "deployment.stopped_with_checkpoint",
                run=run_path.name,
                step=saved.step,
                path=run_path,
            )
        )
    return True


def _end(folder: Path, trainer: TrainerProcess, patience_seconds: float) -> bool:
    """Send SIGTERM, so that the process saves and stops. Return whether it ended in time."""
    if trainer.is_alive is None:
        raise InputError("deployment.run_trained_elsewhere", process=trainer)
    announce_stop(folder, trainer.pid)
    try:
        os.kill(trainer.pid, signal.SIGTERM)
    except ProcessLookupError:
        return True
    except PermissionError as error:
        raise InputError("deployment.process_of_another_user", process=trainer) from error
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        now = read_trainer(folder)
        if now is None or not now.is_alive or now.pid != trainer.pid:
            return True
        time.sleep(LOOK_SECONDS)
    return False


def end(training: DetachedTraining, patience_seconds: float = STOP_SECONDS) -> bool:
    """Stop a detached training, even while it prepares. Return whether its process has ended."""
    trainer = training.trainer
    if trainer is None or trainer.is_alive is False:
        return True
    return _end(training.folder, trainer, patience_seconds)


def fate(training: DetachedTraining) -> str | None:
    """Return how a process has ended; None if it is running or is not a child of this process."""
    process = _STARTED.get(training.folder)
    return None if process is None else process.fate()


def last_line(training: DetachedTraining) -> str:
    """Return the last line of the process's output, which usually names the reason of a failure.

    The output is in a file of the process until the run has a directory, and then in a file of the
    run.
    """
    outputs = [training.folder / OUTPUT_NAME]
    outputs += [training.run_path / OUTPUT_FILE] if training.run_path is not None else []
    for output in outputs:
        try:
            with output.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
                lines = file.read().decode(errors="replace").split("\n")
        except OSError:  # it moved to the run, or the run was removed
            continue
        if words := [line.strip() for line in lines if line.strip()]:
            return redact(words[-1].removeprefix("temper: "))
    return phrase("deployment.printed_nothing")


def how_to_look_on(run_path: Path) -> list[str]:
    """Return lines that name the watch and stop commands and the output file of a detached run."""
    return [
        phrase("deployment.watch_command", path=run_path),
        phrase("deployment.stop_command", path=run_path),
        phrase("deployment.output_file", path=run_path / OUTPUT_FILE),
    ]
