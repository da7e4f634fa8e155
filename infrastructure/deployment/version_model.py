"""One meaning of a model's name in every command: a run, a version of a run, a path, a Hub name."""

import shutil
from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.checksums import damaged_files
from infrastructure.core.errors import DamagedFileError
from infrastructure.deployment.export import export_checkpoint, final_step
from infrastructure.monitoring.records.run_list import (
    NoSuchRunError,
    finished_model,
    names_version,
    run_or_model,
)
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.run.directory import RunDirectory, find_run

NUM_LETTERS = 8  # of a version's hash in the name of its model's folder


def named_model(name: str, output_dir: Path) -> str:
    """Return a model's folder or Hub name, whichever way a person names it.

    The model of a version is written beside `final/` in the run once, and used from there.

    Raises:
        ValueError: there is no such version, or it names a run that is nowhere.
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
    """Let a training begin with the model of a version of a run, and have such a teacher."""
    output_dir, training = Path(config.output_dir), config.training
    if names_version(config.model.name):
        config.model.name = named_model(config.model.name, output_dir)
    if training.teacher is not None and names_version(training.teacher):
        training.teacher = named_model(training.teacher, output_dir)


def _written(run: RunDirectory, checkpoint: Path) -> Path:
    """The folder with the model of a version, which may be there from before."""
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
