"""The run directory: its name, its files, and how to find it by name.

runs/<run_id>/run.json · metrics.jsonl · checkpoints/ · final/ · report.html · summary.json
"""

import re
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from infrastructure.backup.format.manifest import VersionName
from infrastructure.backup.format.store import Store
from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.methods import SFT
from infrastructure.core.checksums import read_record
from infrastructure.core.errors import DamagedFileError, InputError
from infrastructure.core.json_text import as_list, as_object, as_text, json_of
from infrastructure.core.transliteration import in_ascii
from infrastructure.monitoring.records.run_list import (
    RUN_FILE,
    began,
    find_run_path,
    how_to_run_again,
    is_of_a_script,
    moment_of,
    run_folders,
    runs_in,
    split_version,
)
from infrastructure.run.checkpoint_paths import best_of, by_step, is_checkpoint
from infrastructure.run.output_dir import writable
from infrastructure.run.record_types import RunRecord

BEST = "best"  # RUN@best
_OWN_NAME = re.compile(r"\d{8}-\d{6}-(.+)-[0-9a-f]{4}")
_SECOND = "%Y%m%d-%H%M%S"


class RunStatus(StrEnum):
    """The status of a run in summary.json."""

    RUNNING = "running"  # or it was killed
    STOPPED = "stopped"  # not all steps were trained
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True)
class RunDirectory:
    """The paths of the files of one run."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def run_file(self) -> Path:
        return self.path / RUN_FILE

    @property
    def summary_file(self) -> Path:
        return self.path / "summary.json"

    @property
    def before_file(self) -> Path:
        """The file of the measurements from before the first step."""
        return self.path / "before.json"

    @property
    def quarantine_file(self) -> Path:
        """The file of the skipped rows, with source file, line and reason."""
        return self.path / "quarantine.jsonl"

    @property
    def trained_rows_file(self) -> Path:
        """The file with a hash of each row that was trained on."""
        return self.path / "trained_rows.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def final(self) -> Path:
        return self.path / "final"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    def read_run(self) -> RunRecord:
        """Return the contents of run.json.

        Raises:
            ValueError: if the file is missing, damaged, or not written by a run of `temper train`.
        """
        try:
            contents = read_record(self.run_file)
        except FileNotFoundError as error:
            raise InputError("run.run_file_missing", path=self.path, run_file=RUN_FILE) from error
        except DamagedFileError as error:
            raise InputError(str(error)) from error
        if is_of_a_script(contents):
            how = how_to_run_again(contents)
            raise InputError("run.run_of_a_trainer", path=self.path, how=how)
        if not isinstance(contents.get("configuration"), dict):
            raise InputError("run.run_file_without_configuration", run_file=self.run_file)
        return cast(RunRecord, contents)

    def read_model(self) -> dict[str, Any]:
        """Return the description of the model in run.json.

        Raises:
            ValueError: as for `read_run`.
        """
        return dict(self.read_run().get("model") or {})

    def read_configuration(self) -> DeploymentConfig:
        """Return the configuration with which the run began.

        Raises:
            ValueError: if run.json is missing, damaged, or not written by a run of `temper train`.
        """
        saved = self.read_run()["configuration"]
        try:
            return DeploymentConfig.from_dict(saved)
        except ConfigurationError as error:
            raise ConfigurationError(
                "run.recorded_configuration_invalid", run_file=self.run_file, error=error
            ) from error
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                "run.recorded_configuration_unreadable", run_file=self.run_file, error=error
            ) from error

    def has_record(self) -> bool:
        """Return whether run.json exists and is intact."""
        try:
            read_record(self.run_file)
        except (OSError, DamagedFileError):
            return False
        return True

    def read_settings(self) -> DeploymentConfig:
        """Return the configuration with which the run began.

        Raises:
            ValueError: if run.json is missing, damaged, or not written by a run.

        A run of a custom Trainer has recorded only some of the settings.
        """
        if not self.is_of_a_trainer():
            return self.read_configuration()
        settings = read_record(self.run_file).get("settings")
        return DeploymentConfig.from_dict(as_object(settings)) if settings else DeploymentConfig()

    def is_of_a_trainer(self) -> bool:
        """Return whether `TemperCallback` wrote the run, so that only its own script can
        resume it.
        """
        return is_of_a_script(json_of(self.run_file))

    def masked(self) -> list[str]:
        """Return the keys of the configuration whose values are secret and are not recorded."""
        return [as_text(key) for key in as_list(self.read_run()["configuration"].get("masked", []))]

    def is_finished(self) -> bool:
        """Return whether the training is complete and the model exists."""
        return self.status() == RunStatus.FINISHED and self.final.is_dir()

    def status(self) -> RunStatus:
        """Return the status in summary.json, or RUNNING if the file is missing or damaged."""
        try:
            return RunStatus(as_text(read_record(self.summary_file).get("status")))
        except (OSError, DamagedFileError, ValueError, TypeError):
            return RunStatus.RUNNING


def plan_run(output_dir: Path, name: str) -> RunDirectory:
    """Return the directory of a new run, without creating it.

    The id of the run contains the time and `name`.

    The time is normally the current one. If the newest run in `output_dir` has the same or a later
    time, the next possible time after it is used. So the order of the ids is the order of creation,
    even if two runs start at the same moment or the clock is set back.

    Raises:
        ValueError: if `output_dir` is not writable.
    """
    writable(output_dir)
    now = moment_of(time.time())
    others = (began(run)[:2] for run in run_folders(output_dir))
    second, part = max([now, *(_after(*other) for other in others if len(other[0]) == len(now[0]))])
    return RunDirectory(output_dir / f"{second}-{_in_file_name(name)}-{part}")


def _after(second: str, part: str) -> tuple[str, str]:
    """Return the next moment after `second` and `part` that an id can express."""
    number = int(part or "0", 16) + 1
    if number <= 0xFFFF:
        return second, f"{number:04x}"
    later = datetime.strptime(second, _SECOND) + timedelta(seconds=1)
    return later.strftime(_SECOND), "0000"


def default_name(model: str, method: str) -> str:
    """Return the default name of a run: the name of its base model, and the method.

    If the model is the result of another run, the name of that run is used.

    Args:
        model: "embedded", a name on the hub, or the path of a folder.
        method: the method, as in `training.method`; "sft" is not part of the name.
    """
    path = Path(model).expanduser()
    name = model
    if path.is_dir():
        path = path.resolve()
        folder = path.parent if path.name == "final" else path
        name = name_within(folder.name)
    return name if method == SFT else f"{name.removesuffix(f'-{method}')}-{method}"


def is_called(run: RunDirectory, name: str) -> bool:
    """Return whether a run's directory belongs to a run that was given the name `name`."""
    return run.run_id == name or _in_file_name(name) in run.run_id


def name_within(run_id: str) -> str:
    """Return the name in a run's id, without its time and suffix.

    An id without a time is unchanged.
    """
    own = _OWN_NAME.fullmatch(run_id)
    return own[1] if own else run_id


def is_named_in_id(run_id: str, name: str) -> bool:
    """Return whether a run's id contains the name that the user gave to the run."""
    return name_within(run_id) == _in_file_name(name)


def _in_file_name(name: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", in_ascii(name)).strip("-.") or "run"
    return readable[-40:]


def find_run(name: str | None, output_dir: Path) -> tuple[RunDirectory, Path | None]:
    """Return the run that the user named, and the checkpoint in it, if one was named.

    Args:
        name: None for the newest run, `RUN`, `RUN@step`, `RUN@best`, or a path to a run or to a
            checkpoint. A path may end in `checkpoint-STEP`, as in transformers; the part before
            this is a run, or a folder of runs, of which the newest is used.

    Raises:
        ValueError: if there is no such run or checkpoint. The message lists the existing ones.
    """
    path = Path(name or "")
    if name is not None and is_checkpoint(path) and path.is_file():
        return RunDirectory(path.resolve().parent.parent.parent), path.resolve()
    if name is None or (path / RUN_FILE).is_file():
        return RunDirectory(find_run_path(name, output_dir)), None
    run_name, version = split_version(name)
    if version is not None and path.name == f"checkpoint-{version}":
        return _numbered_checkpoint(path, version)
    run = RunDirectory(find_run_path(run_name, output_dir))
    return run, None if version is None else _checkpoint_at(run, version)


def _numbered_checkpoint(path: Path, step: str) -> tuple[RunDirectory, Path]:
    """Return the run and the checkpoint at `.../checkpoint-STEP`."""
    inside = path.parent
    runs = [inside] if (inside / RUN_FILE).is_file() else runs_in(inside)
    if not runs:
        raise InputError("run.checkpoint_folder_missing", path=path, folder=inside, step=step)
    run = RunDirectory(runs[-1].resolve())
    return run, _checkpoint_at(run, step)


def _checkpoint_at(run: RunDirectory, step: str) -> Path:
    store = Store(run.checkpoints)
    manifests = by_step(store)
    if step == BEST:
        if (best := best_of(store)) is None:
            raise InputError("run.no_measured_checkpoint", run=run.run_id)
        return best
    if not step.isdecimal() or int(step) not in manifests:
        steps = ", ".join(map(str, sorted(manifests))) or "none"
        which = step if VersionName.parse(step) is not None else f"at step {step!r}"
        raise InputError("run.no_such_checkpoint", run=run.run_id, which=which, steps=steps)
    return manifests[int(step)]
