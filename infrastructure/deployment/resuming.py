"""The configuration of a resumed run: its recorded settings with the changes given now."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from infrastructure.backup.backends import open_place
from infrastructure.backup.format.store import Store
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.fingerprint import (
    BACKEND,
    backend_taken,
    differing_keys,
    kept_defaults,
    result_settings,
)
from infrastructure.config.merging.precedence import GivenValue, Layer, Source
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.errors import CheckpointError, InputError, StorageError
from infrastructure.core.messages import phrase
from infrastructure.data.readers.sources import data_files_hash
from infrastructure.monitoring.records.run_list import NoSuchRunError, split_version
from infrastructure.run.compatibility import Difference, Verdict, in_words
from infrastructure.run.configuration_judge import canonical_name, shown_name
from infrastructure.run.directory import RunDirectory, find_run
from infrastructure.run.find import settings_in, settings_now
from infrastructure.run.repair import repair_records
from infrastructure.run.restore import (
    check_version,
    folder_of,
    named_run,
    restore_run,
    step_at_place,
)

if TYPE_CHECKING:
    from infrastructure.models.backend_choice import Backend

AS_IT_BEGAN = Source(Layer.KEYWORD, "the default when the run was begun")
AS_IT_WENT_ON = Source(Layer.KEYWORD, "accepted when the run went on")


def configuration_of(run: RunDirectory, checkpoint: Path | None) -> DeploymentConfig:
    """Return the configuration of the run at `checkpoint`, by default its newest checkpoint.

    Raises:
        ValueError: if run.json is missing, damaged, or was not written by a run.
    """
    config = run.read_configuration()
    recorded = result_settings(config)
    settings: Mapping[str, object] = recorded
    if checkpoint is None:
        settings = settings_now(run, recorded)
    elif (store := Store(run.checkpoints)).root == checkpoint.parent.parent:
        settings = settings_in(store.read(checkpoint.stem).values) or recorded
    changed = [key for key in differing_keys(recorded, settings) if key in recorded]
    return config.changed([GivenValue(key, settings[key], AS_IT_WENT_ON) for key in changed])


class RunToResume(NamedTuple):
    """A run to resume, with the checkpoint (None for the newest) and the configuration to use."""

    run: RunDirectory
    checkpoint: Path | None
    config: DeploymentConfig


def find_to_resume(
    name: str | None,
    output_dir: str,
    changes: Collection[GivenValue],
    accept: Collection[str],
    show_line: Callable[[str], None],
    place: GivenValue | None = None,
) -> RunToResume:
    """Find the run that `name` refers to (see `find_run`), and repair its records. Loads no torch.

    Args:
        place: the setting `backup.place` as given now, from any source. A run that is not in
            `output_dir` is restored from this destination, which is then also its backup
            destination.

    Raises:
        ValueError, TemperError: if there is no such run, its records cannot be read, `accept`
            contains an unknown name, or the run is finished and its settings would change.
    """
    for each in accept:
        canonical_name(each)
    options = BackupConfig(place=None if place is None else str(place.value))
    repair_records(Path(output_dir), options, show_line)
    changes = list(changes)
    try:
        run, checkpoint = find_run(name, Path(output_dir))
    except NoSuchRunError:
        if place is None:
            raise
        run, checkpoint = _from_place(name, Path(output_dir), options, show_line)
        changes = [*(change for change in changes if change.key != place.key), place]
    before = configuration_of(run, checkpoint)
    config = before.changed(changes)
    if checkpoint is None and not accept and run.is_finished():
        refuse_changed(run, before, config)
    return RunToResume(run, checkpoint, config)


def _from_place(
    name: str | None, output_dir: Path, options: BackupConfig, show_line: Callable[[str], None]
) -> tuple[RunDirectory, Path | None]:
    """Restore a run that is not on this machine from its backup destination.

    See `find_run` for `name`; if it is a path, the run is restored to that path.

    Raises:
        ValueError: if the destination does not have the run either; the message lists the runs that
            it has.
        CheckpointError: if the destination has no intact checkpoint of the run, or lacks the named
            checkpoint.
        StorageError: if the destination does not respond.
    """
    place = open_place(str(options.place))
    run_name, version = split_version(name or "")
    check_version(run_name, version)
    path = folder_of(run_name)
    output_dir = path.parent if len(path.parts) > 1 else output_dir
    try:
        run_id = named_run(place, run_name or None)
    except StorageError as error:
        error.add_note(phrase("deployment.run_may_be_there", output_dir=output_dir))
        raise
    except ValueError as error:
        if not path.name:
            raise InputError(
                "deployment.no_run_to_resume", output_dir=output_dir, reason=error
            ) from None
        raise InputError(
            "deployment.named_run_not_found", name=path.name, output_dir=output_dir, reason=error
        ) from None
    step = None if version is None else step_at_place(place, run_id, version)
    show_line(
        phrase(
            "deployment.restoring_run_from_backup",
            run_id=run_id,
            output_dir=output_dir,
            url=place.url,
        )
    )
    run, checkpoint = restore_run(run_id, options, output_dir, step, show_line)
    return run, None if version is None else checkpoint


def refuse_changed(run: RunDirectory, was: DeploymentConfig, config: DeploymentConfig) -> None:
    """Raise an error if settings of a finished run have changed that would have changed its result.

    Raises:
        CheckpointError: if a setting that determines the result has changed; the message says how
            to accept it.
    """
    before, now = result_settings(was), result_settings(config)
    keys = [*differing_keys(before, now)]
    if not keys:
        return
    changed = ", ".join(
        phrase(
            "deployment.setting_was_and_is",
            setting=shown_name(key),
            before=before.get(key),
            now=now.get(key),
        )
        for key in keys
    )
    raise CheckpointError(
        "deployment.finished_run_settings_changed",
        run_id=run.run_id,
        changed=changed,
        names=",".join(map(shown_name, keys)),
    )


def as_begun(run: RunDirectory, config: DeploymentConfig) -> DeploymentConfig:
    """Return `config` with its defaults replaced by those that applied when `run` started."""
    try:
        kept = kept_defaults(config, run.read_configuration())
    except ValueError:  # run.json is lost
        return config
    if not kept:
        return config
    return config.changed([GivenValue(key, value, AS_IT_BEGAN) for key, value in kept.items()])


def backend_of(run: RunDirectory) -> "Backend | None":
    """Return the library that loaded the model of a run; None if it was not recorded."""
    settings = settings_now(run, {})
    return backend_taken(settings) if BACKEND in settings else None


def commit_of_base(run: RunDirectory, config: DeploymentConfig) -> str | None:
    """Return the Hub commit of the run's base model; None if `config` names another model."""
    described = run.read_run().get("model")
    began_with = run.read_configuration().model
    same = (config.model.name, config.model.revision) == (began_with.name, began_with.revision)
    commit = described.get("revision") if isinstance(described, Mapping) else None
    return commit if same and isinstance(commit, str) else None


def describe_differences(agreed: Sequence[Difference], step: int) -> list[str]:
    """Return lines about the accepted changes of a run that resumes at `step`."""
    accepted = [d.name for d in agreed if d.verdict is Verdict.CHANGES_THE_RESULT]
    return [*in_words(agreed, step), *explain(accepted)]


def explain(accepted: Collection[str]) -> list[str]:
    """Return a line for each accepted change that has a special effect on the remaining steps."""
    consequences = {
        "data": phrase("deployment.epoch_restarts_new_data"),
        "seed": phrase("deployment.epoch_order_changes"),
        "optimizer": phrase("deployment.new_optimizer_no_state"),
    }
    return [f"{name}: {text}" for name, text in consequences.items() if name in accepted]


def has_other_data(run: RunDirectory, config: DeploymentConfig) -> bool:
    """Return whether the training files have changed since the run recorded their hash."""
    described = run.read_run().get("data")
    recorded = described.get("files_sha256") if isinstance(described, Mapping) else None
    return recorded is not None and data_files_hash(config.data) not in (recorded, None)
