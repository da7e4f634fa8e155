"""`temper tune`: measure which settings make a run fastest on this machine."""

import argparse
import shlex
from functools import partial

from infrastructure.commands.arguments import add_data, add_json
from infrastructure.commands.output import progress, show
from infrastructure.commands.parser import CommandParser
from infrastructure.commands.settings import configure, training_words
from infrastructure.config.sources.flags import add_config_flags, add_preset_flag
from infrastructure.core.console import Report
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the command."""
    parser.unused = {"new_run", "run_name"}
    parser.examples = ("temper tune chats.jsonl --model ./llama --lora",)
    add_data(parser)
    parser.add_argument(
        "--learning-rate-test",
        action="store_true",
        help=phrase("tune.help_learning_rate_test"),
    )
    add_json(parser)
    add_preset_flag(parser)
    add_config_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure the settings, show each result, and print the command of the fastest run."""
    from infrastructure.data.defaults import make_ready
    from infrastructure.deployment.given_paths import check_paths

    config = configure(options, {"data.path": options.data})
    make_ready(config)
    check_paths(config)
    from infrastructure.features.tune.tuning import find_fastest

    report = Report(partial(progress, options.json))
    with report.waiting(phrase("tune.measuring_next_setting")):
        fastest = find_fastest(config, options.learning_rate_test, report)
    given = shlex.join(training_words(options, without=fastest["settings"]))
    command = f"{given} {fastest['flags']}"
    show(
        options.json,
        {**fastest, "command": command},
        phrase("tune.fastest_training", command=command),
    )
    return ExitCode.DONE
