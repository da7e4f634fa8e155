"""`temper train-eval`: measure a trained model on held-out data."""

import argparse

from infrastructure.commands.output import loading_torch
from infrastructure.commands.settings import configure
from infrastructure.config.sources.flags import add_config_flags
from infrastructure.core.exit_codes import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("model", metavar="MODEL", help="a run, its final/, or any model folder")
    parser.add_argument("data", metavar="DATA", help="file, folder or hub data set")
    add_config_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Print what was measured; what cannot be is refused before torch is loaded."""
    config = configure(options, {"model.name": options.model, "data.path": options.data})
    from infrastructure.deployment.given_paths import check_measured

    check_measured(config)
    with loading_torch():
        from infrastructure.deployment.one_call import evaluate_configured

    _, lines = evaluate_configured(config)
    print("\n".join(lines))
    return ExitCode.DONE
