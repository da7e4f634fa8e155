"""`temper watch`: follow a run in the terminal. It does not load torch."""

import argparse
import os
import time
from pathlib import Path

from infrastructure.commands.arguments import A_RUN_HELP, add_folder_flags, add_json, add_run
from infrastructure.commands.output import show
from infrastructure.commands.settings import configure
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.metrics_file import spell_numbers
from infrastructure.monitoring.records.run_list import find_run_path, runs_in
from infrastructure.monitoring.records.run_owner import (
    computes,
    read_trainer,
    started_trainings,
)
from infrastructure.monitoring.records.run_view import read_view
from infrastructure.monitoring.watch import LOOK_SECONDS, check_interval, watch

STARTING_SECONDS = 300.0  # after this time, the run has its directory, here or in another folder
NICENESS = 10  # training on this machine takes precedence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_run(parser, A_RUN_HELP)
    parser.add_argument("--once", action="store_true", help=phrase("commands.help_watch_once"))
    parser.add_argument(
        "--every",
        type=float,
        metavar="SECONDS",
        help=phrase("commands.help_watch_every"),
    )
    add_json(parser)
    add_folder_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Show a run until it ends. Return FAILED if the run failed."""
    check_interval(options.every)
    output_dir = Path(configure(options).output_dir)
    if options.run is None and not (options.once or options.json):
        _wait_for_run(output_dir, options.every or LOOK_SECONDS)
    path = find_run_path(options.run, output_dir)
    if options.run is None and not (options.once or options.json) and read_view(path)["is_over"]:
        path = _wait_for_start(output_dir, options.every or LOOK_SECONDS) or path
    if options.json:
        show(True, spell_numbers(read_view(path)))
        return ExitCode.DONE
    os.nice(NICENESS)
    if options.run is None and options.once and read_view(path)["is_over"]:
        for process in started_trainings(Path.cwd()):
            if _run_of(process.pid, output_dir) is None:
                print(phrase("commands.starting_process_without_run", pid=process.pid))
    was_over = options.run is None and not options.once and read_view(path)["is_over"]
    state = watch(path, options.once, options.every)
    if was_over:
        print(phrase("commands.watched_run_had_ended"))
    return ExitCode.FAILED if state == "failed" else ExitCode.DONE


def _wait_for_start(output_dir: Path, interval_seconds: float) -> Path | None:
    """Wait for the run of a process that is still loading PyTorch, and return the run's path.

    Only a process that was started for this folder counts. Return None if there is no such process,
    or if it ended without a run.
    """
    for process in started_trainings(Path.cwd()):
        if _run_of(process.pid, output_dir) is None:
            pid = process.pid
            print(phrase("commands.waiting_for_starting_process", pid=pid))
        until = process.create_time() + STARTING_SECONDS
        while computes(process) and time.time() < until:
            if (run := _run_of(process.pid, output_dir)) is not None:
                return run
            time.sleep(interval_seconds)
    return None


def _run_of(pid: int, output_dir: Path) -> Path | None:
    """Return the path of the run that the process `pid` trains, or None."""
    for path in runs_in(output_dir):
        trainer = read_trainer(path)
        if trainer is not None and trainer.is_alive and trainer.pid == pid:
            return path
    return None


def _wait_for_run(output_dir: Path, interval_seconds: float) -> None:
    """Wait until the folder contains a run, because the user may start watching before the
    training.
    """
    if not runs_in(output_dir):
        print(phrase("commands.waiting_for_first_run", output_dir=output_dir), flush=True)
    while not runs_in(output_dir):
        time.sleep(interval_seconds)
