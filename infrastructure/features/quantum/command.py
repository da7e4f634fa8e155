"""`temper quantum …`: solve one problem, or measure how the quantum step affects a run."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from infrastructure.commands.arguments import add_data, add_json
from infrastructure.commands.output import progress, show
from infrastructure.commands.parser import CommandParser, as_sentence
from infrastructure.commands.settings import configure
from infrastructure.commands.train import exit_code_of_training
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.flags import add_config_flags, add_preset_flag
from infrastructure.core.errors import InputError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase
from infrastructure.core.stop_signals import interrupt_on_signals
from infrastructure.data.defaults import fit_lengths

if TYPE_CHECKING:
    from infrastructure.features.quantum.solving.solve_file import SolvedFile

MOST_NAMED = 20


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_actions()
    actions.add_parser(
        "compare",
        help=phrase("quantum.help_compare"),
        description=as_sentence(phrase("quantum.help_compare")),
        add_arguments=_add_compare_arguments,
    )
    actions.add_parser(
        "solve",
        help=phrase("quantum.help_solve"),
        description=as_sentence(phrase("quantum.help_solve")),
        add_arguments=_add_solve_arguments,
    )


def _add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_json(parser)
    add_preset_flag(parser)
    add_config_flags(parser)


def _add_solve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="PROBLEM", help="a .bqm, .npz or .json file")
    parser.add_argument("--sampler", default="auto", help=phrase("quantum.help_sampler"))
    parser.add_argument(
        "--time-limit", type=float, default=60.0, metavar="SECONDS", help="time limit (default: 60)"
    )
    parser.add_argument("--seed", type=int, help=phrase("quantum.help_seed"))
    parser.add_argument("--num-ones", type=int, metavar="K", help=phrase("quantum.help_num_ones"))
    parser.add_argument("--reads", type=int, metavar="N", help=phrase("quantum.help_reads"))
    add_json(parser)
    add_config_flags(parser, ["log_level"])


def run(options: argparse.Namespace) -> int:
    """Compare runs with and without the quantum step, or solve a problem."""
    if options.action == "solve":
        configure(options)
        return solve(options)
    from infrastructure.deployment.given_paths import check_paths

    config = configure(options, {"data.path": options.data})
    fit_lengths(config, may_fetch=True)
    check_paths(config)
    return compare(config, options.json)


def compare(config: DeploymentConfig, as_json: bool) -> ExitCode:
    """Train the runs of a comparison, report progress, and print the table of results.

    If a run is stopped, return its exit code; see `exit_code_of_training`.

    Raises:
        ValueError: if a run cannot be started with this configuration.
    """
    from infrastructure.features.quantum.compare import compared, table_of
    from infrastructure.training.distributed.members import others_dismissed

    with interrupt_on_signals(), others_dismissed():
        rows, stopped = compared(config, partial(progress, as_json))
    if stopped is not None:
        progress(as_json, phrase("quantum.comparison_stopped"))
        return exit_code_of_training(stopped)
    show(as_json, {"rows": rows}, *table_of(rows))
    return ExitCode.DONE


def solve(options: argparse.Namespace) -> ExitCode:
    """Read a problem from a file, solve it with a sampler, and print the best solution.

    Raises:
        ValueError: if the file contains no model, or the sampler does not support the request.
        SamplerError: if the sampler failed, or had no solution in time.
    """
    _refuse_wrong_numbers(options)
    from infrastructure.features.quantum.solving.solve_file import solve_file

    with interrupt_on_signals():
        facts = solve_file(
            options.file,
            options.sampler,
            options.time_limit,
            seed=options.seed,
            num_ones=options.num_ones,
            num_reads=options.reads,
        )
    show(options.json, facts, *_lines(facts))
    return ExitCode.DONE


def _refuse_wrong_numbers(options: argparse.Namespace) -> None:
    if not 0 < options.time_limit < float("inf"):
        raise InputError("quantum.invalid_time_limit", seconds=options.time_limit)
    for name, value, least in (
        ("--seed", options.seed, 0),
        ("--num-ones", options.num_ones, 0),
        ("--reads", options.reads, 1),
    ):
        if value is not None and value < least:
            raise InputError("quantum.number_too_small", flag=name, value=value, minimum=least)


def _lines(facts: "SolvedFile") -> list[str]:
    ones = [str(v) for v, x in zip(facts["variables"], facts["values"], strict=True) if x > 0]
    more = f", and {len(ones) - MOST_NAMED} more" if len(ones) > MOST_NAMED else ""
    kept = "within" if facts["is_limit_kept"] else "over"
    cut = phrase("quantum.search_cut_off_by_limit") if facts["is_cut_off"] else ""
    size = f"{facts['num_variables']} variables, {facts['num_interactions']} interactions"
    limit = phrase("quantum.time_limit_kept", seconds=facts["time_limit"], kept=kept, cut_off=cut)
    return [
        f"{facts['file']}: {size}",
        f"energy   {facts['energy']:.10g}",
        f"sampler  {facts['sampler']}: {facts['reason']}",
        f"time     {facts['seconds']:.2f} s, {limit}",
        f"ones     {len(ones)}: {', '.join(ones[:MOST_NAMED]) or 'none'}{more}",
    ]
