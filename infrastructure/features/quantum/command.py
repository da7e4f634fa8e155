"""`temper quantum solve`: find the lowest energy of a QUBO that is read from a file."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infrastructure.commands.arguments import add_json
from infrastructure.commands.output import show
from infrastructure.commands.parser import CommandParser, as_sentence
from infrastructure.commands.settings import configure
from infrastructure.config.sources.flags import add_config_flags
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase
from infrastructure.core.stop_signals import interrupt_on_signals

if TYPE_CHECKING:
    from infrastructure.features.quantum.solving.solve_file import SolvedFile

MOST_NAMED = 20
SETTINGS = ("quantum.solver", "quantum.timeout", "training.seed", "log_level")


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the command."""
    text = phrase("quantum.help_solve")
    parser.add_actions().add_parser(
        "solve", help=text, description=as_sentence(text), add_arguments=_add_solve_arguments
    )


def _add_solve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="PROBLEM", help="a .bqm, .npz or .json file")
    add_json(parser)
    add_config_flags(parser, SETTINGS)


def run(options: argparse.Namespace) -> int:
    """Read a problem, solve it with a sampler, and print the best solution.

    Raises:
        ValueError: if the file contains no model, or the sampler is unknown.
        SamplerError: if the sampler failed, or had no solution in time.
    """
    config: Any = configure(options)  # with the sections of features
    from infrastructure.features.quantum.solving.solve_file import solve_file

    with interrupt_on_signals():
        facts = solve_file(
            options.file, config.quantum.solver, config.quantum.timeout, config.training.seed
        )
    show(options.json, facts, *_lines(facts))
    return ExitCode.DONE


def _lines(facts: "SolvedFile") -> list[str]:
    ones = [str(v) for v, x in zip(facts["variables"], facts["values"], strict=True) if x > 0]
    more = f", and {len(ones) - MOST_NAMED} more" if len(ones) > MOST_NAMED else ""
    size = f"{facts['num_variables']} variables, {facts['num_interactions']} interactions"
    return [
        f"{facts['file']}: {size}",
        f"energy   {facts['energy']:.10g}",
        f"sampler  {facts['sampler']}: {facts['reason']}",
        f"time     {facts['seconds']:.2f} s",
        f"ones     {len(ones)}: {', '.join(ones[:MOST_NAMED]) or 'none'}{more}",
    ]
