"""`temper queue add|run|list|remove`: train several runs one after another, such as overnight."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from infrastructure.commands.arguments import (
    accepted,
    add_accept,
    add_data,
    add_folder_flags,
    add_json,
)
from infrastructure.commands.output import progress, show
from infrastructure.commands.parser import CommandParser, as_sentence
from infrastructure.commands.settings import configure
from infrastructure.config.sources.flags import add_config_flags, add_preset_flag, flags_given
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase
from infrastructure.data.defaults import make_ready
from infrastructure.deployment.given_paths import check_given
from infrastructure.features.queue.training_queue import Job, JobState, TrainingQueue, new_job
from infrastructure.monitoring.drawing.formatting import format_duration, printable


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_actions()
    for action, text, add in (
        ("add", phrase("queue.help_add"), _add_training),
        ("run", phrase("queue.help_run"), _add_folder),
        ("list", phrase("queue.help_list"), _add_folder),
        ("remove", phrase("queue.help_remove"), _add_numbers),
    ):
        actions.add_parser(action, help=text, description=as_sentence(text), add_arguments=add)


def _add_training(parser: CommandParser) -> None:
    parser.examples = (
        "temper queue add chats.jsonl --epochs 3 --deadline 2h",
        "temper queue add more.jsonl --model ./llama --lora  # then: temper queue run",
    )
    add_data(parser)
    add_accept(parser)
    add_preset_flag(parser)
    add_config_flags(parser)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    add_folder_flags(parser)


def _add_numbers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "numbers", nargs="+", type=int, metavar="NUMBER", help=phrase("queue.help_numbers")
    )
    _add_folder(parser)


def run(options: argparse.Namespace) -> int:
    """Run an action, and return its exit code.

    For the action `run`, this is FAILED if a job did not finish, and NOT_CONFIRMED if a backup is
    not confirmed.
    """
    act = {"add": add, "run": run_queue, "list": list_jobs, "remove": remove}[options.action]
    return act(options)


def add(options: argparse.Namespace) -> int:
    """Add a job. A configuration that cannot work is rejected now, not when the job starts."""
    given = options.data, flags_given(options), accepted(options), options.config
    new_job(*given)  # secrets are refused first, because any other message might show them
    config = configure(options, {"data.path": options.data})
    make_ready(config)
    check_given(config, accepted(options))
    queue = TrainingQueue(Path(config.output_dir))
    job = queue.add(*given)
    print(f"Job {job.number} waits: {job.line}")
    if queue.runner() is None:
        print(phrase("queue.how_to_run"))
    return ExitCode.DONE


def run_queue(options: argparse.Namespace) -> int:
    """Train the waiting jobs, and show their results."""
    queue = _queue_of(options)
    jobs = queue.run(lambda line: progress(options.json, line))
    _show(options.json, jobs, phrase("queue.no_job_waits"))
    if any(job.state is not JobState.FINISHED for job in jobs):
        return ExitCode.FAILED
    return ExitCode.NOT_CONFIRMED if any(job.reason for job in jobs) else ExitCode.DONE


def list_jobs(options: argparse.Namespace) -> int:
    """Show every job."""
    queue = _queue_of(options)
    runner = queue.runner()
    _show(options.json, queue.jobs(), phrase("queue.is_empty"), runner)
    return ExitCode.DONE


def remove(options: argparse.Namespace) -> int:
    """Remove jobs from the queue."""
    jobs = _queue_of(options).remove(options.numbers)
    lines = [f"Removed job {job.number}: {job.line}" for job in jobs]
    show(options.json, {"removed": [job.to_dict() for job in jobs]}, *lines)
    return ExitCode.DONE


def _queue_of(options: argparse.Namespace) -> TrainingQueue:
    return TrainingQueue(Path(configure(options).output_dir))


def _show(as_json: bool, jobs: Sequence[Job], empty: str, runner: str | None = None) -> None:
    """Show the jobs, as a few lines each or as one JSON object."""
    facts = {"jobs": [job.to_dict() for job in jobs], "run_by": runner}
    if not jobs:
        show(as_json, facts, empty)
        return
    lines = [phrase("queue.is_run_by", process=runner)] if runner else []
    show(as_json, facts, *lines, *(line for job in jobs for line in job_lines(job)))


def job_lines(job: Job) -> list[str]:
    """Return lines that describe a job: its state, its run, and why it did not finish."""
    lines = [f"{job.number:>3}  {job.state:<11}  {_time_taken(job):>10}  {job.line}"]
    more = [f"run {job.run}"] if job.run else []
    more += [job.reason] if job.reason else []
    return lines + [f"{'':<5}{printable(text)}" for text in more]


def _time_taken(job: Job) -> str:
    """Return the duration of the job's last process."""
    if job.began is None:
        return ""
    return format_duration(max(0.0, (job.ended or time.time()) - job.began))
