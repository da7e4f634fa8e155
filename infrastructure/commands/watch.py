"""`temper watch`: follow a run in the terminal. Loads no torch: looking costs little."""

import argparse
import os
import time
from pathlib import Path

from infrastructure.commands.arguments import A_RUN_HELP, add_folder_flags, add_json, add_run
from infrastructure.commands.output import show
from infrastructure.commands.settings import configure
from infrastructure.core.exit_codes import ExitCode
from infrastructure.monitoring.drawing.metrics_file import spell_numbers
from infrastructure.monitoring.records.run_list import find_run_path, runs_in
from infrastructure.monitoring.records.run_view import read_view
from infrastructure.monitoring.watch import LOOK_SECONDS, check_interval, watch

NICENESS = 10  # whoever trains on this machine comes first


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    add_run(parser, A_RUN_HELP)
    parser.add_argument("--once", action="store_true", help="show it as it is now, and end")
    parser.add_argument(
        "--every",
        type=float,
        metavar="SECONDS",
        help="between looks (default: 1; between lines in a pipe more and more, up to 30)",
    )
    add_json(parser)
    add_folder_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Show a run until it ends; FAILED where it failed."""
    check_interval(options.every)
    output_dir = Path(configure(options).output_dir)
    if options.run is None and not (options.once or options.json):
        _wait_for_run(output_dir, options.every or LOOK_SECONDS)
    path = find_run_path(options.run, output_dir)
    if options.json:
        show(True, spell_numbers(read_view(path)))
        return ExitCode.DONE
    os.nice(NICENESS)
    was_over = options.run is None and not options.once and read_view(path)["is_over"]
    state = watch(path, options.once, options.every)
    if was_over:
        print("It had ended before; temper watch RUN, or this again, shows one that begins now.")
    return ExitCode.FAILED if state == "failed" else ExitCode.DONE


def _wait_for_run(output_dir: Path, interval_seconds: float) -> None:
    """It may be opened before the first training."""
    if not runs_in(output_dir):
        print(f"No run in {output_dir} yet: waiting for one. Ctrl-C ends this.", flush=True)
    while not runs_in(output_dir):
        time.sleep(interval_seconds)
