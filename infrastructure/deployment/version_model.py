"""Model names in all forms that commands accept: a run, a checkpoint, a path, a Hub name."""

import shutil
from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.checksums import damaged_files
from infrastructure.core.errors import DamagedFileError
from infrastructure.core.features import models_of_features
from infrastructure.deployment.export import export_checkpoint, final_step
from infrastructure.monitoring.records.run_list import (
    NoSuchRunError,
    finished_model,
    names_version,
    run_or_model,
)
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.run.directory import RunDirectory, find_run

NUM_LETTERS = 8  # of a version's hash, used in the name of the folder


def named_model(name: str, output_dir: Path) -> str:
    """Return the folder or Hub name of a model that the user named in any form.

    If the name is a checkpoint, its model is exported once, next to `final/`, and reused
    afterwards.

    Raises:
        ValueError: if there is no such checkpoint or run.
    """
    name = finished_model(name)
    if not names_version(name):
        return run_or_model(name, output_dir)
    try:
        run, checkpoint = find_run(name, output_dir)
    except NoSuchRunError:
        return run_or_model(name, output_dir)
    if checkpoint is None:
        return str(run.path)
    if step_of(checkpoint) == final_step(run):
        return str(run.final)
    return str(_written(run, checkpoint))


def use_versions(config: DeploymentConfig) -> None:
    """Replace checkpoints that are given as models by their exported models."""
    for key in ("model.name", *models_of_features()):
        if names_version(config.value(key) or ""):
            config.assign(key, named_model(config.value(key), Path(config.output_dir)))


def _written(run: RunDirectory, checkpoint: Path) -> Path:
    """Return the folder with the model of a checkpoint. Export the model if necessary."""
    version = checkpoint.stem.rpartition("-")[2][:NUM_LETTERS]
    folder = run.path / f"step-{step_of(checkpoint)}-{version}"
    try:
        if folder.is_dir() and not damaged_files(folder):
            return folder
    except DamagedFileError:
        pass
    shutil.rmtree(folder, ignore_errors=True)
    export_checkpoint(run, checkpoint, folder)
    return folder
