"""`temper sweep`: search for the best settings with Optuna, one run per trial."""

import argparse
import shlex

from infrastructure.commands.arguments import add_data, add_json
from infrastructure.commands.output import progress, show
from infrastructure.commands.parser import CommandParser
from infrastructure.commands.settings import configure, training_words
from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.effect import refused_without_effect
from infrastructure.config.sources.flags import (
    add_config_flags,
    add_preset_flag,
    as_flags,
    flag_names,
)
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase
from infrastructure.core.optional import refuse_missing
from infrastructure.data.defaults import make_ready
from infrastructure.features.sweep.search_space import (
    Dimension,
    check_comparable,
    parse_search,
    settings_of,
    short_value,
)
from infrastructure.features.sweep.study import PRUNERS, SAMPLERS, Goal
from infrastructure.features.sweep.sweep import Sweep, TrialResult, grid
from infrastructure.monitoring.drawing.formatting import format_duration, format_number
from infrastructure.monitoring.drawing.tables import render_table

NUM_TRIALS = 20


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the command."""
    parser.unused = {"new_run"}
    parser.texts = {
        "run_name": "name of the sweep and of its directory",
        "training.deadline": "end the whole sweep within TIME",
    }
    parser.examples = (
        "temper sweep chats.jsonl --search learning_rate=1e-5..1e-3:log --trials 10",
    )
    add_data(parser)
    parser.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="KEY=VALUES",
        help=phrase("sweep.help_search"),
    )
    parser.add_argument(
        "--trials", type=int, default=NUM_TRIALS, metavar="N", help="number of runs (default: 20)"
    )
    parser.add_argument(
        "--sampler",
        choices=SAMPLERS,
        default="tpe",
        metavar="NAME",
        help=phrase("sweep.help_sampler", samplers=", ".join(SAMPLERS)),
    )
    parser.add_argument(
        "--pruner",
        choices=PRUNERS,
        default="median",
        metavar="NAME",
        help=phrase("sweep.help_pruner", pruners=", ".join(PRUNERS)),
    )
    add_json(parser)
    add_preset_flag(parser)
    add_config_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Run the sweep, and return its exit code.

    The code is INTERRUPTED if trials are left, DONE if a trial succeeded, and otherwise FAILED.
    """
    from infrastructure.deployment.given_paths import check_given

    dimensions = parse_search(options.search)
    config = configure(options, {"data.path": options.data})
    goal = goal_of(options, config)
    check(dimensions, config, goal, options.trials)
    make_ready(config)
    check_given(config)
    refuse_missing("optuna", "temper sweep")
    sweep = Sweep(config, dimensions, goal)

    def report(line: str) -> None:
        progress(options.json, line)

    is_over = sweep.run(options.trials, report, config.training.deadline)
    results, best = sweep.results(), sweep.best()
    command = None if best is None else command_of(options, sweep, best)
    facts = {
        "sweep": str(sweep.folder),
        **goal.to_dict(),
        "is_over": is_over,
        "best": None if best is None else best.to_dict(),
        "command": command,
        "trials": [one.to_dict() for one in results],
    }
    lines = [table(results, best, dimensions, goal)] if results else []
    if best is not None:
        lines += [
            phrase("sweep.best_trial", run=best.run),
            phrase("sweep.train_best_again", command=command),
        ]
    show(options.json, facts, *lines)
    if not is_over:
        return ExitCode.INTERRUPTED
    return ExitCode.FAILED if best is None else ExitCode.DONE


def goal_of(options: argparse.Namespace, config: DeploymentConfig) -> Goal:
    """Return the goal of the sweep: the metric that also selects the best checkpoint."""
    training = config.training
    direction = "maximize" if training.best_is_greater else "minimize"
    return Goal(training.best_metric_key, direction, options.sampler, options.pruner)


def check(
    dimensions: list[Dimension], config: DeploymentConfig, goal: Goal, num_trials: int
) -> None:
    """Check that the sweep can work, before anything slow starts.

    Raises:
        ConfigurationError: if the sweep cannot work; the message says what is wrong and what to do.
    """
    if num_trials < 1:
        raise ConfigurationError("sweep.too_few_trials", count=num_trials)
    if config.new_run:
        raise ConfigurationError("sweep.new_run")
    if not config.data.holds_out:
        raise ConfigurationError("sweep.without_held_out_data")
    check_comparable(dimensions, config)
    if goal.sampler == "grid":
        grid(dimensions)
    first = {one.name: one.choices[0] if one.choices else one.low for one in dimensions}
    try:
        tried = config.changed(settings_of(dimensions, first, config))
    except ConfigurationError:  # these values do not go together, but others may
        return
    keys = {one.key for one in dimensions}
    if in_vain := [*refused_without_effect(tried, tried.source, keys)]:
        raise ConfigurationError("\n".join(in_vain))


def table(
    results: list[TrialResult], best: TrialResult | None, dimensions: list[Dimension], goal: Goal
) -> str:
    """Format the trials as a table, one line each, with a mark on the best one."""
    names = [one.name for one in dimensions]
    rows = []
    for one in results:
        mark = " *" if best is not None and one.number == best.number else ""
        value = "" if one.value is None else format_number(one.value)
        seconds = f"as {one.same_as}" if one.same_as is not None else ""
        seconds = seconds or ("" if one.seconds is None else format_duration(one.seconds))
        state = {"complete": "", "fail": "failed"}.get(one.state, one.state)
        shown = [short_value(one.values.get(name, "")) for name in names]
        rows.append([f"{one.number}{mark}", *shown, value, state, seconds])
    searched = [flag_names(name)[0].removeprefix("--") for name in names]
    return render_table(["trial", *searched, goal.title, "", "time"], rows)


def command_of(options: argparse.Namespace, sweep: Sweep, best: TrialResult) -> str:
    """Return the command that trains with the values of the best trial."""
    best_values = {setting.key: setting.value for setting in sweep.settings_of(best)}
    given = training_words(options, without={"run_name", "training.deadline", *best_values})
    return f"{shlex.join(given)} {as_flags(best_values)}"
