"""`temper resume`: resume a run with the settings that it recorded."""

import argparse
from collections.abc import Collection, Sequence

from infrastructure.backup.run_backup import place_options
from infrastructure.commands.arguments import accepted, add_accept, add_run
from infrastructure.commands.output import loading_torch
from infrastructure.commands.parser import CommandParser
from infrastructure.commands.ranks import on_several_processes
from infrastructure.commands.settings import configure
from infrastructure.commands.short_help import IN_RUN
from infrastructure.commands.train import exit_code_of_training
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import GivenValue, Layer
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.flags import add_config_flags
from infrastructure.core.console import show
from infrastructure.core.errors import InputError

# A resumed run takes these from the file and the environment as well; others only from flags.
CHANGED_BY_RESUMING = ("log_level", "cuda_visible_devices", "num_processes", "process_timeout")
PLACE = "backup.place"
OF_COMMAND = ("output_dir", "new_run", "run_name")  # not settings of the run that resumes


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the command."""
    parser.unused = {"new_run", "run_name"}
    parser.examples = (
        "temper resume                                    # the newest run",
        "temper resume my-run@400                         # from step 400",
        "temper resume my-run --epochs 5 --accept epochs",
    )
    add_run(parser)
    add_accept(parser, "commands.help_accept")
    keys = [key for key in schema_of(DeploymentConfig).fields if key not in OF_COMMAND]
    add_config_flags(parser, inherited=keys, default_of_inherited=IN_RUN)


def run(options: argparse.Namespace) -> int:
    """Resume a run with its recorded settings and the settings given now."""
    config = configure(options)
    if config.new_run and config.source("new_run").layer is Layer.FLAG:
        raise InputError("commands.resume_with_new_run")
    changes = [
        GivenValue(key, config.value(key), source)
        for key, source in config.sources().items()
        if key not in OF_COMMAND
        and (
            source.layer is Layer.FLAG
            or (key in CHANGED_BY_RESUMING and source.layer is not Layer.DEFAULT)
        )
    ]
    place = place_options(config).place  # where a run that is not on this machine may be
    return resume(
        options.run,
        config.output_dir,
        changes,
        accepted(options),
        options.words_given,
        GivenValue(PLACE, place, config.source(PLACE)) if place else None,
    )


def resume(
    name: str | None,
    output_dir: str,
    changes: Collection[GivenValue] = (),
    accept: Collection[str] = (),
    words: Sequence[str] = (),
    place: GivenValue | None = None,
) -> int:
    """Resume a run as `temper.resume` does, and return the exit code.

    A run that cannot be resumed is rejected before torch is loaded.

    Args:
        words: the command line of each process, if several processes train.
        place: see `find_to_resume`.
    """
    from infrastructure.deployment.resuming import find_to_resume

    chosen = find_to_resume(name, output_dir, changes, accept, show, place)
    code = on_several_processes(chosen.config, words)
    if code is not None:
        return code
    with loading_torch():
        from infrastructure.deployment.one_call import resume_run

    return exit_code_of_training(resume_run(chosen, accept, show))
