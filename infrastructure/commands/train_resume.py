"""`temper train-resume`: go on with a run, with the settings that it recorded."""

import argparse
import logging
from collections.abc import Collection
from pathlib import Path

from infrastructure.commands.arguments import accepted, add_accept, add_run
from infrastructure.commands.settings import configure, refuse_unsupported
from infrastructure.commands.train import exit_code_of_training
from infrastructure.config.merging.precedence import Layer, Setting
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.config.sources.flags import add_config_flags
from infrastructure.core.stop_signals import interrupt_on_signals

# What a run that goes on is told anew by file and environment too; the rest by flags alone.
CHANGED_BY_RESUMING = ("log_level", "cuda_visible_devices", "num_processes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    add_run(parser)
    add_accept(parser)
    add_config_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Go on with what was recorded, but for what is given now."""
    config = configure(options)
    changes = [
        Setting(key, config.value(key), source)
        for key, source in config.sources().items()
        if key not in ("output_dir", "new_run")
        and (
            source.layer is Layer.FLAG
            or (key in CHANGED_BY_RESUMING and source.layer is not Layer.DEFAULT)
        )
    ]
    refuse_unsupported(config, [setting.key for setting in changes])
    return resume(options.run, config.output_dir, changes, accepted(options))


def resume(
    name: str | None,
    output_dir: str,
    changes: Collection[Setting] = (),
    accept: Collection[str] = (),
) -> int:
    """Go on with a run (see `find_run` for how it is named), as recorded but for `changes`."""
    from infrastructure.backup.run_backup import place_options
    from infrastructure.deployment.deploy_training import TrainingDeployment
    from infrastructure.deployment.model_repair import repair_finished
    from infrastructure.deployment.resuming import configuration_of
    from infrastructure.run.directory import find_run
    from infrastructure.run.repair import repair_records
    from infrastructure.training.parallel.membership import followers_dismissed

    repair_records(Path(output_dir), BackupConfig(place=place_in(changes)), print)
    run, checkpoint = find_run(name, Path(output_dir))
    config = configuration_of(run, checkpoint).changed(list(changes))
    logging.getLogger().setLevel(config.log_level)
    if config.backup.place is None and "backup.place" in run.masked():
        print("note: backup.place held a password, which is never recorded: give --backup-place")
    deployment = TrainingDeployment(config, accept=accept)
    if checkpoint is None and not accept and run.is_finished():
        repair_finished(run, place_options(config), print)
    with interrupt_on_signals(), followers_dismissed():
        if checkpoint is None and run.is_finished() and not accept:
            print(f"Run {run.run_id} is finished: {run.final}; another RUN, or RUN@step, goes on")
            summary = deployment.complete(run)
        else:
            summary = deployment.resume(run, checkpoint)
    return exit_code_of_training(summary)


def place_in(changes: Collection[Setting]) -> str | None:
    """The place that was given now, before it is known what the run recorded."""
    return next((str(s.value) for s in changes if s.key == "backup.place" and s.value), None)
