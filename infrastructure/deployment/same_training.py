"""Which run the same command goes on with. Needs no torch."""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from infrastructure.backup.store import Store
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.purpose import differing_keys, purpose_of
from infrastructure.core.errors import CheckpointError
from infrastructure.deployment.run_directory import RunDirectory
from infrastructure.monitoring.run_list import run_folders
from infrastructure.training.resume_contract import shown_name

log = logging.getLogger(__name__)


def newest_of_this_purpose(
    config: DeploymentConfig, accepted: Collection[str]
) -> RunDirectory | None:
    """The newest run in `config.output_dir` that trains what `config` asks for.

    Args:
        accepted: names of settings that may differ; see `resume_contract.names`.
    """
    wanted = purpose_of(config)
    for path in reversed(run_folders(Path(config.output_dir))):
        run = RunDirectory(path)
        if run.is_of_a_trainer():
            continue
        try:
            recorded: Mapping[str, Any] = purpose_of(run.read_configuration())
        except ValueError as error:
            recorded = settings_now(run, {})  # run.json is lost, and its versions know it, too
            if not recorded:
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
    store = Store(run.checkpoints)
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
