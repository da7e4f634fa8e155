"""A rehearsal of the worst case: the machine that trains is lost with its whole disk.

The process that trains and its helpers are killed with SIGKILL, to which they cannot react, and the
run's directory is moved away, as if the disk were gone. Only the backup destination is left, as
after the loss of a runtime.
"""

import contextlib
import time
from pathlib import Path

import psutil

from infrastructure.backup.replication.status import BackupStatus, read_status
from infrastructure.backup.run_backup import STATUS_FILE
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import GivenValue, Layer, Source
from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.data.samples import use_sample_data
from infrastructure.deployment import detached
from infrastructure.monitoring.records.run_owner import read_trainer
from infrastructure.run.directory import RunDirectory
from infrastructure.run.find import newest_of_this_purpose

LOST_FOLDER = "lost-machines"
LOOK_SECONDS = 0.02
REPORT_SECONDS = 5.0
TIMEOUT_SECONDS = 900.0


def rehearse_disconnect(
    config: DeploymentConfig, at_step: int, timeout_seconds: float = TIMEOUT_SECONDS
) -> None:
    """Train until `at_step` is backed up, then act as if the machine were lost.

    Nothing is really lost: the run's directory is moved to `lost-machines/` next to the runs. If
    the run was already moved there, or is finished, nothing happens, so that the cell can run
    again.

    Raises:
        ValueError: if `config` has no backup destination, so that nothing would be left, or cannot
            be trained.
        RunFailedError: if the process ended before the training began.
        TimeoutError: if the step was not backed up in time, or the training ended before that.
    """
    if config.backup.place is None:
        raise InputError("notebook.rehearsal_without_backup")
    config = config.changed([])
    use_sample_data(config)
    run = newest_of_this_purpose(config, [])
    if run is not None and run.is_finished():
        print(phrase("notebook.rehearsal_run_finished", run=run.run_id))
    elif run is None and (lost := newest_of_this_purpose(_elsewhere(config), [])):
        print(phrase("notebook.rehearsal_machine_already_gone", run=lost.run_id))
    else:
        path = run.path if run and _pid_of(run.path) else detached.follow(detached.start(config))
        _take_away(RunDirectory(path), Path(config.output_dir), at_step, timeout_seconds)


def _elsewhere(config: DeploymentConfig) -> DeploymentConfig:
    """Return the configuration with `output_dir` in the folder of the lost machines."""
    folder = str(Path(config.output_dir) / LOST_FOLDER)
    return config.changed([GivenValue("output_dir", folder, Source(Layer.KEYWORD, "rehearsal"))])


def _take_away(run: RunDirectory, output_dir: Path, at_step: int, timeout_seconds: float) -> None:
    pid = _pid_of(run.path)
    safe = _wait(run, at_step, timeout_seconds)
    if pid is None or _pid_of(run.path) != pid:
        raise TimeoutError(phrase("notebook.rehearsal_run_ended", run=run.run_id))
    _kill_with_helpers(pid)
    lost = output_dir / LOST_FOLDER / run.run_id
    lost.parent.mkdir(parents=True, exist_ok=True)
    run.path.rename(lost)
    print(phrase("notebook.rehearsal_machine_taken_away", pid=pid, run=run.run_id))
    print(phrase("notebook.rehearsal_only_backup_left", step=safe.confirmed_step, place=safe.place))


def _pid_of(path: Path) -> int | None:
    """Return the ID of the running process that trains the run at `path`; None if there is none."""
    trainer = read_trainer(path)
    return trainer.pid if trainer is not None and trainer.is_alive else None


def _wait(run: RunDirectory, at_step: int, timeout_seconds: float) -> BackupStatus:
    """Wait until step `at_step` is confirmed or training has ended. Return the backup status."""
    started = reported_at = time.monotonic()
    while True:
        now, status = time.monotonic(), read_status(run.checkpoints / STATUS_FILE)
        if (status.confirmed_step or 0) >= at_step or _pid_of(run.path) is None:
            return status
        if now - started > timeout_seconds:
            raise TimeoutError(
                phrase("notebook.step_not_confirmed", step=at_step, seconds=timeout_seconds)
            )
        if now - reported_at >= REPORT_SECONDS and status.confirmed_step is not None:
            reported_at = now
            print(status.possible_loss(time.time()).text)
        time.sleep(LOOK_SECONDS)


def _kill_with_helpers(pid: int) -> None:
    """Kill a process and all its descendants with SIGKILL, and wait until they are gone."""
    trainer = psutil.Process(pid)
    doomed = [trainer, *trainer.children(recursive=True)]
    for process in doomed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(doomed, timeout=60)
