"""`temper stop`: let a training save and stop, wherever it runs on this machine."""

import argparse
from pathlib import Path

from infrastructure.commands.arguments import A_RUN_HELP, add_folder_flags, add_run
from infrastructure.commands.settings import configure
from infrastructure.core.exit_codes import ExitCode
from infrastructure.deployment import detached
from infrastructure.monitoring.records.run_list import find_run_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    add_run(parser, A_RUN_HELP)
    add_folder_flags(parser)


def run(options: argparse.Namespace) -> int:
    """FAILED where it has not stopped within some minutes."""
    output_dir = Path(configure(options).output_dir)
    waiting = detached.preparing(output_dir) if options.run is None else []
    if waiting:
        is_stopped = detached.stop_preparing(waiting[-1])
    else:
        is_stopped = detached.stop(find_run_path(options.run, output_dir))
    return ExitCode.DONE if is_stopped else ExitCode.FAILED
