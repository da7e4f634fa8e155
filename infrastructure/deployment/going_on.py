"""Which run the same command goes on with, and what a run is told anew when it goes on."""

import hashlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from infrastructure.config.data_config import DataConfig
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.layers import Layer, Setting, Source
from infrastructure.config.purpose import differing_keys, purpose_of
from infrastructure.core.errors import CheckpointError
from infrastructure.core.files import write_json
from infrastructure.deployment.run_directory import RunDirectory
from infrastructure.monitoring.run_list import runs_in
from infrastructure.training.accepted_changes import explain
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.data.sources import discover
from infrastructure.training.resume_contract import Difference, Verdict, shown_name

log = logging.getLogger(__name__)

AS_IT_WENT_ON = Source(Layer.KEYWORD, "accepted when the run went on")


def newest_of_this_purpose(
    config: DeploymentConfig, accepted: Collection[str]
) -> RunDirectory | None:
    """The newest run in `config.output_dir` that trains what `config` asks for.

    Args:
        accepted: names of settings that may differ; see `resume_contract.names`.
    """
    wanted = purpose_of(config)
    for path in reversed(runs_in(Path(config.output_dir))):
        run = RunDirectory(path)
        if run.is_of_a_trainer():
            continue
        try:
            recorded = purpose_of(run.read_configuration())
        except ValueError as error:
            log.warning("run %s is passed over: %s", run.run_id, error)
            continue
        if any(is_same(was, wanted, accepted) for was in (recorded, settings_now(run, recorded))):
            return run
    return None


def is_same(
    recorded: Mapping[str, Any], wanted: Mapping[str, Any], accepted: Collection[str]
) -> bool:
    """Whether two purposes differ in nothing but what is accepted."""
    return all(shown_name(key) in accepted for key in differing_keys(recorded, wanted))


def settings_now(run: RunDirectory, began_with: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings that count of the newest checkpoint: some may have been changed on the way."""
    store = CheckpointManager(run.checkpoints).store
    for name in store.versions():
        try:
            return settings_in(store.read(name).values) or began_with
        except CheckpointError:
            continue
    return began_with


def settings_in(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings that a version was trained with; empty where one's own loop recorded none."""
    identity = values.get("identity")
    settings = identity.get("settings") if isinstance(identity, Mapping) else None
    return settings if isinstance(settings, Mapping) else {}


def configuration_of(run: RunDirectory, checkpoint: Path | None) -> DeploymentConfig:
    """What the run was told, as it was when `checkpoint` (None: the newest) was saved.

    Raises:
        ValueError: run.json is missing, damaged, or not written by a run.
    """
    config = run.read_configuration()
    recorded = purpose_of(config)
    settings: Mapping[str, Any] = recorded
    if checkpoint is None:
        settings = settings_now(run, recorded)
    elif (store := CheckpointManager(run.checkpoints).store).root == checkpoint.parent.parent:
        settings = settings_in(store.read(checkpoint.stem).values) or recorded
    changed = [key for key in differing_keys(recorded, settings) if key in recorded]
    return config.changed([Setting(key, settings[key], AS_IT_WENT_ON) for key in changed])


def commit_of_base(run: RunDirectory, config: DeploymentConfig) -> str | None:
    """The commit of the hub model that the run began with, unless `config` asks for another."""
    described = run.read_run().get("model")
    began_with = run.read_configuration().model
    same = (config.model.name, config.model.revision) == (began_with.name, began_with.revision)
    commit = described.get("revision") if isinstance(described, Mapping) else None
    return commit if same and isinstance(commit, str) else None


def what_differs(agreed: Sequence[Difference]) -> list[str]:
    """A line for each thing that is not what it was when the run went on."""
    by_verdict = {verdict: [d for d in agreed if d.verdict is verdict] for verdict in Verdict}
    rounded, accepted = by_verdict[Verdict.ROUNDS_OTHERWISE], by_verdict[Verdict.CHANGES_THE_RESULT]
    return [
        *(f"note: {d}; the result is the same" for d in by_verdict[Verdict.HARMLESS]),
        *(f"note: {d}; from here on sums round, and dropout is drawn, otherwise" for d in rounded),
        *(f"accepted: {difference}" for difference in accepted),
        *explain([difference.name for difference in accepted]),
    ]


def record_accepted(run: RunDirectory, agreed: Sequence[Difference], step: int) -> None:
    """Add what was accepted, or rounds otherwise, to run.json; what the run began with stays there
    as it is."""
    accepted = [d for d in agreed if d.verdict is not Verdict.HARMLESS]
    if not accepted:
        return
    record = run.read_run()
    entry = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "step": step,
        "changes": [{"name": d.name, "was": d.was, "is": d.found} for d in accepted],
    }
    write_json(run.run_file, {**record, "accepted": [*record.get("accepted", []), entry]})


def data_files_hash(data: DataConfig) -> str | None:
    """One hash for the files that `data` names; None where they are not files of this machine."""
    digest = hashlib.sha256()
    for place in (data.path, data.eval_path):
        if place is None or not Path(place).exists():
            continue
        for file in discover(place, data.format):
            digest.update(f"{file.name} {file.sha256()}\n".encode())
    return digest.hexdigest() if data.path is not None and Path(data.path).exists() else None


def has_other_data(run: RunDirectory, config: DeploymentConfig) -> bool:
    """Whether the files that the run has read are known to say something else by now."""
    described = run.read_run().get("data")
    recorded = described.get("files_sha256") if isinstance(described, Mapping) else None
    return recorded is not None and data_files_hash(config.data) not in (recorded, None)
