"""Which run the same command goes on with, and that two of them begin only one. Needs no torch."""

import hashlib
import json
import logging
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from infrastructure.backup.format.store import Store
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.fingerprint import (
    current_keys,
    differing_keys,
    earlier_settings,
    result_settings,
)
from infrastructure.core.errors import CheckpointError
from infrastructure.core.files import make_directory
from infrastructure.core.lock import Lock
from infrastructure.monitoring.records.run_list import run_folders
from infrastructure.monitoring.records.run_owner import read_trainer, this_process
from infrastructure.run.configuration_judge import shown_name
from infrastructure.run.directory import RunDirectory

BACKEND = "model.backend"
MODEL, DATA = "model.name", "data.path"
BEGINNING = ".beginning"  # in the output folder: a file for each training that begins now

log = logging.getLogger(__name__)


class Beginning:
    """Held by a process from looking for a run of its purpose until there is one that others find.

    Two equal commands at the same instant would find none, and train twice what was meant once.
    Where the output folder cannot be written to, nothing is held, and nothing can begin.

    Raises:
        ValueError: another process holds it; says which.
    """

    def __init__(self, config: DeploymentConfig) -> None:
        spelled = json.dumps(result_settings(config), sort_keys=True, default=str)
        name = hashlib.sha256(spelled.encode()).hexdigest()[:16]
        self._path = Path(config.output_dir) / BEGINNING / name
        self._lock: Lock | None = None
        with suppress(OSError):
            self._hold()

    def _hold(self) -> None:
        while self._lock is None:
            make_directory(self._path.parent)
            try:
                lock = Lock(self._path)
            except FileNotFoundError:  # who ends just now has removed the folder
                continue
            if not lock.take(wait=False, where_there_are_none=True):
                raise ValueError(
                    f"the same training is begun by {self._holder()} just now: wait for its run,"
                    " stop it, or train another beside it with --new-run"
                )
            with suppress(FileNotFoundError):  # who held it before has removed its name
                if os.path.samestat(os.fstat(lock.descriptor), self._path.stat()):
                    self._lock = lock
                    continue
            lock.release()
        self._path.write_text(this_process())

    def _holder(self) -> str:
        try:
            return self._path.read_text() or "another process"
        except OSError:  # it ends just now, and its name is gone
            return "another process"

    def end(self) -> None:
        """There is a run now, or there will be none; a second call does nothing."""
        if self._lock is not None:
            with suppress(OSError):
                self._path.unlink()
                self._path.parent.rmdir()  # where no other training begins
            self._lock.release()
            self._lock = None


def newest_of_this_purpose(
    config: DeploymentConfig, accepted: Collection[str]
) -> RunDirectory | None:
    """The newest run in `config.output_dir` that trains what `config` asks for.

    Args:
        accepted: names of settings that may differ; see `configuration_judge.names`.
    """
    for path in reversed(run_folders(Path(config.output_dir))):
        run = RunDirectory(path)
        if run.is_of_a_trainer():
            continue
        try:
            recorded: Mapping[str, object] = result_settings(run.read_configuration())
        except ValueError as error:
            recorded = settings_now(run, {})  # run.json is lost, and its versions know it, too
            if not recorded:
                log.warning("run %s is passed over: %s", run.run_id, error)
                continue
        both = (recorded, settings_now(run, recorded))
        if any(is_same(was, wanted_beside(was, config), accepted) for was in both):
            return run
    return None


def unfinished_beside(config: DeploymentConfig) -> tuple[RunDirectory, list[str]] | None:
    """The newest run of the same data and model that is not finished, is trained by nobody, and
    differs in other settings; and those, in words."""
    for path in reversed(run_folders(Path(config.output_dir))):
        run = RunDirectory(path)
        if run.is_of_a_trainer() or run.is_finished() or not Store(run.checkpoints).versions():
            continue
        trainer = read_trainer(path)
        if trainer is not None and trainer.is_alive is not False:
            continue
        try:
            recorded = result_settings(run.read_configuration())
        except ValueError:
            continue
        recorded = dict(settings_now(run, recorded))
        wanted = wanted_beside(recorded, config)
        differing = [*differing_keys(recorded, wanted)]
        if not {MODEL, DATA} & {*differing}:
            there = current_keys(recorded)
            both = ((key, there.get(key), wanted.get(key)) for key in differing)
            return run, [f"{shown_name(k)} ({was} there, {now} here)" for k, was, now in both]
    return None


def wanted_beside(recorded: Mapping[str, object], config: DeploymentConfig) -> Mapping[str, object]:
    """The settings that count of `config`, to be compared with those of a run."""
    return result_settings(config) | earlier_settings(config, recorded)


def is_same(
    recorded: Mapping[str, object], wanted: Mapping[str, object], accepted: Collection[str]
) -> bool:
    """Whether two purposes differ in nothing but what is accepted. Where the library that loads the
    model is left open, it is the one that the run began with."""
    is_open = wanted.get(BACKEND) == "auto"
    differing = (k for k in differing_keys(recorded, wanted) if not (is_open and k == BACKEND))
    return all(shown_name(key) in accepted for key in differing)


def settings_now(run: RunDirectory, began_with: Mapping[str, object]) -> Mapping[str, object]:
    """The settings that count of the newest checkpoint: some may have been changed on the way."""
    store = Store(run.checkpoints)
    for name in store.versions():
        try:
            return settings_in(store.read(name).values) or began_with
        except CheckpointError:
            continue
    return began_with


def settings_in(values: Mapping[str, object]) -> Mapping[str, object]:
    """The settings that a version was trained with; empty where one's own loop recorded none."""
    identity = values.get("identity")
    settings = identity.get("settings") if isinstance(identity, Mapping) else None
    return settings if isinstance(settings, Mapping) else {}
