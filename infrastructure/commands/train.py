"""`temper train`: train a model, in this process or in a detached one."""

import argparse
from collections.abc import Collection

from infrastructure.commands.arguments import accepted, add_accept, add_data
from infrastructure.commands.output import loading_torch
from infrastructure.commands.parser import CommandParser
from infrastructure.commands.questions import confirmed
from infrastructure.commands.ranks import on_several_processes
from infrastructure.commands.settings import configure, use_versions
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.flags import add_config_flags, add_preset_flag
from infrastructure.core.console import show
from infrastructure.core.errors import InputError, RunFailedError
from infrastructure.core.exit_codes import ExitCode, exit_code_of_signal
from infrastructure.core.messages import phrase
from infrastructure.data.defaults import make_ready
from infrastructure.data.preparation.doubts import UnconfirmedDataError, check_meant
from infrastructure.monitoring.records.run_owner import read_trainer
from infrastructure.run.find import newest_of_this_purpose
from infrastructure.run.record_types import Summary


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the command."""
    parser.examples = (
        "temper train                                        # sample tasks, a small model",
        "temper train chats.jsonl --model ./llama --lora     # your data, your model",
        "temper train chats.jsonl --backup-place /mnt/drive  # with backups",
    )
    add_data(parser)
    parser.add_argument("--detach", action="store_true", help=phrase("commands.help_detach"))
    add_accept(parser)
    add_preset_flag(parser)
    add_config_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Train a model. A configuration that cannot work is rejected before torch is loaded."""
    from infrastructure.deployment.given_paths import check_given

    config = configure(options, {"data.path": options.data})
    use_versions(config)
    make_ready(config)
    check_given(config, accepted(options))
    confirm_data(config, accepted(options))
    if options.detach:
        return detach(config, accepted(options))
    code = on_several_processes(config, options.words_given)
    return train(config, accepted(options)) if code is None else code


def confirm_data(config: DeploymentConfig, accept: Collection[str] = ()) -> None:
    """Ask the user to confirm training data that looks unintended, such as very few rows.

    The question comes before torch is loaded, and only if no run is resumed.

    Raises:
        UnconfirmedDataError: if the user declined, or there is no terminal.
    """
    try:
        check_meant(config.data)
    except UnconfirmedDataError as error:
        if not config.new_run and newest_of_this_purpose(config, accept) is not None:
            return
        if not confirmed(phrase("commands.confirm_small_data", doubt=error.doubt)):
            raise
        config.data.accept_small_data = True


def train(config: DeploymentConfig, accept: Collection[str] = ()) -> int:
    """Resume the run with these settings or start one, and return its exit code."""
    with loading_torch():
        from infrastructure.deployment.one_call import train_configured
    return exit_code_of_training(train_configured(config, accept, show))


def exit_code_of_training(summary: Summary) -> ExitCode:
    """Return the exit code for the `summary` of a run.

    For a stopped run, this is the exit code of the signal, or INTERRUPTED. For a finished run
    without a confirmed backup, it is NOT_CONFIRMED.
    """
    if summary["status"] == "stopped":
        name = summary["signal"]
        return exit_code_of_signal(name) if name else ExitCode.INTERRUPTED
    is_copied = not summary.get("backup", {}).get("problem")
    return ExitCode.DONE if is_copied else ExitCode.NOT_CONFIRMED


def detach(config: DeploymentConfig, accept: Collection[str] = ()) -> int:
    """Start a run that outlives this shell, and show its output until it has a run directory.

    Returns:
        DONE as soon as the run trains, or the exit code of its process if that ended before.

    Raises:
        ValueError: if the configuration cannot work, or the same run is already being prepared.
    """
    from infrastructure.deployment import detached

    make_ready(config)
    same = None if config.new_run else detached.preparing_the_same(config)
    if same is not None:
        raise InputError("commands.same_run_being_prepared", process=same.trainer)
    training = detached.start(config, accept)
    try:
        run_path = detached.follow(training)
    except RunFailedError:  # the last line of its output gives the reason
        return training.exit_code()
    except KeyboardInterrupt:
        print(phrase("commands.preparation_continues", process=training.trainer))
        return ExitCode.DONE
    trainer = read_trainer(run_path)
    if trainer is not None and trainer.is_alive:
        print(phrase("commands.detached_run_trains", run=run_path.name, process=trainer))
        print(*detached.how_to_look_on(run_path), sep="\n")
    return ExitCode.DONE
