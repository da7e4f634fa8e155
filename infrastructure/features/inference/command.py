"""`temper bench`: measure which inference method is fastest for a model."""

import argparse
from pathlib import Path
from typing import Any

from infrastructure.commands.arguments import add_folder_flags, add_json
from infrastructure.commands.output import loading_torch, show
from infrastructure.commands.settings import configure
from infrastructure.core.console import waiting_beside
from infrastructure.core.errors import InputError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.hardware import processor
from infrastructure.core.messages import phrase
from infrastructure.core.stop_signals import interrupt_on_signals
from infrastructure.monitoring.drawing.tables import render_table
from infrastructure.monitoring.records.run_list import run_or_model

# The settings that affect inference; all others belong to training.
SETTINGS = (
    *("device", "model.dtype", "model.quantization", "model.attention"),
    *("model.adapter", "model.trust_remote_code", "model.revision"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("model", metavar="MODEL", help=phrase("commands.help_model"))
    parser.add_argument("--rows", type=int, default=1, help=phrase("inference.help_rows"))
    parser.add_argument(
        "--length", type=int, default=128, help="length of a row, in tokens (default: 128)"
    )
    add_json(parser)
    add_folder_flags(parser, *SETTINGS)


def run(options: argparse.Namespace) -> int:
    """Measure the inference methods, and show the results as a table."""
    from infrastructure.deployment.given_paths import check_device, check_model

    config = configure(options, {"model.name": options.model})
    config.model.name = run_or_model(config.model.name, Path(config.output_dir))
    _refuse_wrong(options)
    check_device(config)
    check_model(config.model.name)
    with loading_torch(options.json):
        from infrastructure.features.inference.methods import find_fastest_inference

    with interrupt_on_signals(), waiting_beside(phrase("inference.trying_methods")):
        result, notes = find_fastest_inference(config, options.rows, options.length)
    facts = {
        "model": config.model.name,
        "num_rows": options.rows,
        "length": options.length,
        "processor": processor().model,
        "method": result.method,
        "before_seconds": result.before_seconds,
        "after_seconds": result.after_seconds,
        "seconds_of_method": result.seconds_of_method,
        "failures": result.failures,
    }
    show(options.json, facts, *notes, *_lines(facts))
    return ExitCode.DONE


def _refuse_wrong(options: argparse.Namespace) -> None:
    for name, value in (("--rows", options.rows), ("--length", options.length)):
        if value < 1:
            raise InputError("inference.size_too_small", flag=name, value=value)


def _lines(facts: dict[str, Any]) -> list[str]:
    before = facts["before_seconds"]
    seconds = {phrase("inference.model_unchanged"): before, **facts["seconds_of_method"]}
    rows = [
        [name, f"{1000 * step_seconds:.2f} ms", f"{before / step_seconds:.2f} x"]
        for name, step_seconds in seconds.items()
    ]
    title = f"{facts['model']}, {facts['num_rows']} x {facts['length']} tokens"
    refused = [
        phrase("inference.method_not_possible", method=name, reason=why)
        for name, why in facts["failures"].items()
    ]
    best = phrase("inference.model_unchanged") if facts["method"] == "eager" else facts["method"]
    speedup = before / facts["after_seconds"]
    verdict = phrase("inference.fastest_method", method=best, speedup=speedup)
    return [render_table([title, "latency", "speed"], rows), *refused, verdict]
