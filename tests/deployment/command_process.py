"""`temper …` whose jobs are forks of it: a new Python would import PyTorch for each of them.

While there is a file `hold` in its folder, a job waits when it has saved step HOLD_AT.
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil

from infrastructure.commands.main import main
from infrastructure.deployment import detached
from infrastructure.monitoring.records.run_owner import read_trainer
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Hook, Observer

HOLD_AT = 5


class Holding(Observer):
    """Waits for the test."""

    def checkpoint_saved(self, state: TrainingState) -> None:
        while state.step >= HOLD_AT and Path("hold").exists():
            time.sleep(0.02)


def kill_job(run: Path) -> None:
    """SIGKILL to the process that trains a run, with its helpers: a power cut of all of it."""
    trainer = read_trainer(run)
    assert trainer is not None
    process = psutil.Process(trainer.pid)
    family = [*process.children(recursive=True), process]
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(family, timeout=10)


def be_the_job(arguments: tuple[str, ...]) -> int:
    """What a new Python would do."""
    from infrastructure.deployment.deploy_training import TrainingDeployment

    get_observers = TrainingDeployment._observers

    def observers(self: TrainingDeployment, *parts: Any) -> list[Hook]:
        return [*get_observers(self, *parts), Holding()]

    TrainingDeployment._observers = observers  # type: ignore[method-assign]
    return main([*arguments])


class ForkedHelper:
    """As `HelperProcess`, of `infrastructure` alone."""

    def __init__(self, _module: str, *arguments: str, stdout: IO[bytes], **_options: Any) -> None:
        read, write = os.pipe()
        self._status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            for source, number in ((read, 0), (stdout.fileno(), 1), (stdout.fileno(), 2)):
                os.dup2(source, number)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # as `Popen` does
            sys.stdin = open(0, closefd=False)  # noqa: SIM115
            code = 1
            try:
                code = be_the_job(arguments)
                sys.stdout.flush()
            finally:
                os._exit(code)
        os.close(read)
        self.stdin = os.fdopen(write, "wb")

    def wait(self) -> int:
        """The exit code; called by a thread and by whoever wants to know."""
        while self._status is None:
            try:
                status = os.waitpid(self.pid, 0)[1]
            except ChildProcessError:  # the thread has it, and tells in a moment
                continue
            self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def fate(self) -> str:
        return f"it was killed by signal {-self.wait()}"


if __name__ == "__main__":
    detached.HelperProcess = ForkedHelper  # type: ignore[assignment,misc]
    sys.exit(main())
