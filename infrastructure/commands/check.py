"""`temper check`: run every check on the machine, model and data of a configuration."""

import argparse
import json
import sys
from typing import TYPE_CHECKING, cast

from infrastructure.commands.arguments import add_data, add_json
from infrastructure.commands.parser import CommandParser
from infrastructure.commands.settings import configure
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.methods import SFT
from infrastructure.config.sources.flags import add_config_flags, add_preset_flag
from infrastructure.core.console import has_colour, show, waiting_beside
from infrastructure.core.errors import InputError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase
from infrastructure.core.stop_signals import interrupt_on_signals
from infrastructure.testing.results import GROUPS

if TYPE_CHECKING:
    from infrastructure.data.data_pipeline import DataPipeline

NUM_PREVIEWED = 2


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the command."""
    parser.unused = {"new_run", "run_name"}
    parser.examples = ("temper check chats.jsonl --model ./llama --lora",)
    add_data(parser)
    parser.add_argument(
        "--preview",
        nargs="?",
        type=int,
        const=NUM_PREVIEWED,
        metavar="N",
        help=phrase("commands.help_preview"),
    )
    parser.add_argument("--quick", action="store_true", help=phrase("commands.help_quick_check"))
    parser.add_argument("--strict", action="store_true", help="treat each warning as a failure")
    parser.add_argument(
        "--rebaseline", action="store_true", help=phrase("commands.help_rebaseline")
    )
    add_json(parser)
    add_preset_flag(parser)
    add_config_flags(parser)


def _show_tokens(config: DeploymentConfig, options: argparse.Namespace) -> int:
    """Show the first examples token by token, as the model will see them.

    The model is not loaded. The prepared data stays in the cache for the training run.
    """
    if options.preview < 1:
        raise InputError("commands.preview_needs_an_example")
    if options.quick or options.strict or options.rebaseline:
        raise InputError("commands.preview_runs_no_checks")
    with waiting_beside(phrase("commands.loading_pytorch_and_data")):
        from infrastructure.data.data_pipeline import first_examples
        from infrastructure.data.encoding.token_preview import (
            counts_line,
            kinds_of,
            token_preview,
        )
        from infrastructure.testing.label_checks import check_prompts
        from infrastructure.training.trainer_factory import TrainerFactory

        adapter = TrainerFactory().for_run(config, "transformers").adapter
        tokenizer = adapter.initialize_tokenizer()
        if tokenizer is None:
            raise InputError("commands.preview_of_model_without_text")
        data = adapter.create_data_source(config.cache, config.training.seed)
        examples = [*first_examples(cast("DataPipeline", data), options.preview)]
    records = []
    for shown in examples:
        example = shown.example
        kinds = kinds_of(example, tokenizer)
        ids = example.input_ids.tolist()
        pairs = zip(ids, kinds, strict=True)
        records.append([[one, tokenizer.decode([one]), kind.value] for one, kind in pairs])
        if not options.json:
            print(token_preview(example, tokenizer, has_colour(sys.stdout), shown.left_out))
            print(f"{counts_line(kinds)}\n")
    prompts = check_prompts(cast("DataPipeline", data))
    notes = [f"{prompts.text}: {prompts.remedy}"] if prompts.status == "fail" else []
    for note in [] if options.json else notes:
        show(f"note: {note}")
    if options.json:
        left_out = [shown.left_out for shown in examples]
        print(json.dumps({"examples": records, "left_out": left_out, "notes": notes}))
    return ExitCode.DONE


def run(options: argparse.Namespace) -> int:
    """Run the checks, show each result and write the report. Return FAILED if a check failed."""
    from infrastructure.data.defaults import make_ready
    from infrastructure.deployment.given_paths import check_given

    config = configure(options, {"data.path": options.data})
    if options.preview is not None:
        return _show_tokens(config, options)
    if config.training.method == SFT:  # the checks cover Temper's own loop, and report so
        make_ready(config)
        check_given(config)
    with waiting_beside("loading PyTorch"):
        from infrastructure.testing.test_pipeline import create_test_pipeline

    def report_line(line: str) -> None:
        if not options.json:
            show(line)

    for note in config.notes():
        report_line(f"note: {note}")
    pipeline = create_test_pipeline(config, report=report_line, rebaseline=options.rebaseline)
    with interrupt_on_signals(), waiting_beside("checking"):
        pipeline.run_tests(*(GROUPS[:1] if options.quick else GROUPS))
    report = pipeline.generate_test_report()
    report_line(report["verdict"])
    report_line(f"report: {report['path']}")
    if options.json:
        print(json.dumps(report))
    return ExitCode.FAILED if pipeline.has_failed(strict=options.strict) else ExitCode.DONE
