"""A search for the run that a command resumes, so that a repeated command does not start a second
run.

Loads no torch.
"""

import hashlib
import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from infrastructure.backup.format.store import Store
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.fingerprint import (
    BACKEND,
    backend_taken,
    differing_keys,
    kept_defaults,
    result_settings,
)
from infrastructure.core.checksums import read_record
from infrastructure.core.errors import CheckpointError, DamagedFileError, InputError
from infrastructure.core.files import make_directory
from infrastructure.core.gpu_presence import has_no_gpu
from infrastructure.core.lock import Lock
from infrastructure.core.messages import phrase
from infrastructure.core.optional import is_installed
from infrastructure.monitoring.records.run_list import run_folders
from infrastructure.monitoring.records.run_owner import read_trainer, this_process
from infrastructure.run.configuration_judge import shown_name
from infrastructure.run.directory import RunDirectory
from infrastructure.run.history import Change, change_words, history_of, not_accepted

MODEL, DATA = "model.name", "data.path"
BEGINNING = ".beginning"  # a folder in the output folder, with a file for each run that is starting

log = logging.getLogger(__name__)


class Beginning:
    """A lock that a process holds while it searches for a run to resume or starts a new one.

    Without the lock, two equal commands at the same moment would both find no run, and the same
    training would run twice. If the output folder is not writable, there is no lock, and no run can
    start.

    Raises:
        ValueError: if another process holds the lock. The message names it.
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
            except FileNotFoundError:  # another process has just removed the folder
                continue
            if not lock.take(wait=False, where_there_are_none=True):
                raise InputError("run.same_run_is_starting", holder=self._holder())
            with suppress(FileNotFoundError):  # the previous holder has removed the file
                if os.path.samestat(os.fstat(lock.descriptor), self._path.stat()):
                    self._lock = lock
                    continue
            lock.release()
        self._path.write_text(this_process())

    def _holder(self) -> str:
        try:
            return self._path.read_text() or "another process"
        except OSError:  # the holder has just removed the file
            return "another process"

    def end(self) -> None:
        """Release the lock, because the search for a run is over. A second call does nothing."""
        if self._lock is not None:
            with suppress(OSError):
                self._path.unlink()
                self._path.parent.rmdir()  # fails if another run is starting
            self._lock.release()
            self._lock = None


def newest_of_this_purpose(
    config: DeploymentConfig, accepted: Collection[str]
) -> RunDirectory | None:
    """Return the newest run in `config.output_dir` with the same settings as `config`, or None.

    A run whose settings were changed during training does not match, unless `accepted` names these
    changes.

    Args:
        accepted: names of settings that may differ; see `configuration_judge.names`.
    """
    return next((run for run, changes in _of_these_settings(config, accepted) if not changes), None)


def changed_under_way(
    config: DeploymentConfig, accepted: Collection[str]
) -> tuple[RunDirectory, list[str]] | None:
    """Return the newest run with these settings whose settings were changed during training, with
    messages.

    The run has the settings of `config`, or began with them. Each message describes a change that
    `accepted` does not name.
    """
    for run, changes in _of_these_settings(config, accepted):
        if changes:
            return run, [change_words(step, change) for step, change in changes]
    return None


def _of_these_settings(
    config: DeploymentConfig, accepted: Collection[str]
) -> Iterator[tuple[RunDirectory, list[tuple[int, Change]]]]:
    """Yield the runs that began with the settings of `config` or have them now, the newest first.

    With each run, yield the changes of settings during training that `accepted` does not name, each
    with its step.
    """
    for path in reversed(run_folders(Path(config.output_dir))):
        run = RunDirectory(path)
        if run.is_of_a_trainer():
            continue
        began = None
        try:
            began = run.read_configuration()
            recorded: Mapping[str, object] = result_settings(began)
        except ValueError as error:
            recorded = settings_now(run, {})  # run.json is lost: use those in its versions
            if not recorded:
                log.warning(phrase("run.unreadable_run_skipped", run=run.run_id, error=error))
                continue
        now = settings_now(run, recorded)
        loaded_by = ModelLibrary(recorded.get(BACKEND), backend_taken(now))
        trains_this = any(
            is_same(was, wanted_beside(began, config), accepted, loaded_by)
            for was in (recorded, now)
        )
        if trains_this and not has_met_bad_losses_otherwise(run, config):
            yield run, not_accepted(history_of(run), accepted)


def has_other_settings(run: RunDirectory, config: DeploymentConfig) -> bool:
    """Return whether any setting of a run differs from `config`, including accepted differences.

    The settings of the newest checkpoint are compared.
    """
    began = None
    recorded: Mapping[str, object] = {}
    with suppress(ValueError):
        began = run.read_configuration()
        recorded = result_settings(began)
    now = settings_now(run, recorded)
    loaded_by = ModelLibrary(recorded.get(BACKEND), backend_taken(now))
    return bool(now) and any(_differing(now, wanted_beside(began, config), loaded_by))


def unfinished_beside(config: DeploymentConfig) -> tuple[RunDirectory, list[str]] | None:
    """Return the newest unfinished run that has the same model and data but different settings.

    Runs that are being trained are left out. Also return a message for each setting that differs.
    """
    for path in reversed(run_folders(Path(config.output_dir))):
        run = RunDirectory(path)
        if run.is_of_a_trainer() or run.is_finished() or not Store(run.checkpoints).versions():
            continue
        trainer = read_trainer(path)
        if trainer is not None and trainer.is_alive is not False:
            continue
        try:
            began = run.read_configuration()
            recorded = result_settings(began)
        except ValueError:
            continue
        configured = recorded.get(BACKEND)
        recorded = dict(settings_now(run, recorded))
        wanted = wanted_beside(began, config)
        loaded_by = ModelLibrary(configured, backend_taken(recorded))
        differing = [*_differing(recorded, wanted, loaded_by)]
        if differing and not {MODEL, DATA} & {*differing}:
            both = ((key, recorded.get(key), wanted.get(key)) for key in differing)
            return run, [
                f"{shown_name(key)} ({_as_written(was)} there, {_as_written(now)} here)"
                for key, was, now in both
            ]
    return None


def _as_written(value: object) -> str:
    """Return a value as users write it in a flag or a file, such as true instead of True."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def wanted_beside(began: DeploymentConfig | None, config: DeploymentConfig) -> Mapping[str, object]:
    """Return the settings of `config` to compare with those of a recorded run.

    Args:
        began: the configuration that the run recorded, or None if it is unknown.
    """
    return result_settings(config) | (kept_defaults(config, began) if began else {})


@dataclass(frozen=True)
class ModelLibrary:
    """The library that loads the model of a run.

    Attributes:
        configured: the value of `model.backend` when the run began, or None if run.json is lost.
        taken: the library that the run actually uses, if the setting is `auto`.
    """

    configured: object
    taken: str

    def is_same(self, wanted: object) -> bool:
        """Return whether `wanted`, a value of `model.backend`, selects this run's library.

        The library matters because Unsloth changes the model that it loads.
        """
        if (
            self.configured is None
        ):  # a setting that is open resolves to the value that the run uses
            return wanted in ("auto", self.taken)
        if wanted == "auto" and self.configured == "transformers":
            return has_no_gpu() or not is_installed("unsloth")  # `auto` then chooses transformers
        return wanted == self.configured or (self.configured == "auto" and wanted == self.taken)


def is_same(
    recorded: Mapping[str, object],
    wanted: Mapping[str, object],
    accepted: Collection[str],
    loaded_by: ModelLibrary | None = None,
) -> bool:
    """Return whether two sets of settings are equal, except for settings that `accepted` names.

    Args:
        loaded_by: the library that loads the model of the run, or None if only `recorded` is known.
    """
    loaded_by = loaded_by or ModelLibrary(None, backend_taken(recorded))
    return all(shown_name(key) in accepted for key in _differing(recorded, wanted, loaded_by))


def _differing(
    recorded: Mapping[str, object], wanted: Mapping[str, object], loaded_by: ModelLibrary
) -> Iterator[str]:
    """Yield the keys of the settings that differ; `model.backend` only if the difference
    matters.
    """
    yield from (key for key in differing_keys(recorded, wanted) if key != BACKEND)
    if not loaded_by.is_same(wanted.get(BACKEND, "auto")):
        yield BACKEND


def has_met_bad_losses_otherwise(run: RunDirectory, config: DeploymentConfig) -> bool:
    """Return whether a finished run had bad losses that `config` would handle differently.

    If it had, `config` would lead to other weights. The result is False for an unfinished run,
    because it resumes with the settings of `config`.
    """
    if not run.is_finished():
        return False
    try:
        before = run.read_configuration().training.recovery
        met = read_record(run.summary_file).get("recoveries")
    except (ValueError, OSError, DamagedFileError):
        return False
    now = config.training.recovery
    policies: dict[str, tuple[str, str]] = {
        "not_finite": (before.not_finite, now.not_finite),
        "loss_spike": (before.loss_spike, now.loss_spike),
    }
    records = met if isinstance(met, list) else []
    kinds = {record.get("kind") for record in records if isinstance(record, Mapping)}
    return any(kind in kinds and was != is_now for kind, (was, is_now) in policies.items())


def settings_now(run: RunDirectory, began_with: Mapping[str, object]) -> Mapping[str, object]:
    """Return the settings at the newest checkpoint, including changes during training.

    Without a readable checkpoint, return `began_with`.
    """
    store = Store(run.checkpoints)
    for name in store.versions():
        try:
            return settings_in(store.read(name).values) or began_with
        except CheckpointError:
            continue
    return began_with


def settings_in(values: Mapping[str, object]) -> Mapping[str, object]:
    """Return the settings in the values of a checkpoint; empty if a custom loop recorded none."""
    identity = values.get("identity")
    settings = identity.get("settings") if isinstance(identity, Mapping) else None
    return settings if isinstance(settings, Mapping) else {}
