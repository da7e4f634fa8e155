"""`temper train-eval`: measure a trained model on held-out data."""

import argparse
from pathlib import Path

from infrastructure.commands.settings import configure
from infrastructure.config.sources.flags import add_config_flags
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.stop_signals import interrupt_on_signals


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("model", metavar="MODEL", help="a run, its final/, or any model folder")
    parser.add_argument("data", metavar="DATA", help="file, folder or hub data set")
    add_config_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Print what was measured."""
    config = configure(options, {"model.name": options.model, "data.path": options.data})
    from infrastructure.deployment.model_repair import repair_model
    from infrastructure.evaluation.evaluate import evaluate_model

    repair_model(Path(config.model.name))
    with interrupt_on_signals():
        lines = evaluate_model(config)
    print("\n".join(lines))
    return ExitCode.DONE
