"""`temper check`: every check on the machine, model and data of a configuration."""

import argparse
import json
from pathlib import Path

from infrastructure.commands.arguments import add_data, add_json
from infrastructure.commands.settings import configure
from infrastructure.config.sources.flags import add_config_flags, add_preset_flag
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.stop_signals import interrupt_on_signals
from infrastructure.run.output_dir import writable
from infrastructure.testing.results import GROUPS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    add_data(parser)
    parser.add_argument("--quick", action="store_true", help="seconds: only what moves no weight")
    parser.add_argument("--strict", action="store_true", help="a warning is a failure")
    parser.add_argument(
        "--rebaseline", action="store_true", help="forget earlier times of this work"
    )
    add_json(parser)
    add_preset_flag(parser)
    add_config_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Check, show each result, write the report; the exit code says whether all is well."""
    config = configure(options, {"data.path": options.data})
    writable(Path(config.output_dir))
    from infrastructure.testing.test_pipeline import create_test_pipeline

    def report_line(line: str) -> None:
        if not options.json:
            print(line, flush=True)

    pipeline = create_test_pipeline(config, report=report_line, rebaseline=options.rebaseline)
    with interrupt_on_signals():
        pipeline.run_tests(*(GROUPS[:1] if options.quick else GROUPS))
    report = pipeline.generate_test_report()
    report_line(report["verdict"])
    report_line(f"report: {report['paths']['html']}")
    if options.json:
        print(json.dumps(report))
    return ExitCode.FAILED if pipeline.has_failed(strict=options.strict) else ExitCode.DONE
