"""`temper stop`: make any run on this machine save a checkpoint and stop."""

import argparse
from pathlib import Path

from infrastructure.commands.arguments import A_RUN_HELP, add_folder_flags, add_run
from infrastructure.commands.settings import configure
from infrastructure.core.exit_codes import ExitCode
from infrastructure.deployment import detached


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_run(parser, A_RUN_HELP)
    add_folder_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Stop a run, or a process that is preparing one. Return FAILED if it did not stop in time."""
    output_dir = Path(configure(options).output_dir)
    is_stopped = detached.stop(detached.named(options.run, output_dir))
    return ExitCode.DONE if is_stopped else ExitCode.FAILED
