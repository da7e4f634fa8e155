"""`temper eval`: evaluate a trained model on held-out data."""

import argparse
from pathlib import Path

from infrastructure.commands.arguments import add_json, names_in
from infrastructure.commands.output import loading_torch, show
from infrastructure.commands.parser import CommandParser
from infrastructure.commands.settings import configure, resolve_model
from infrastructure.commands.short_help import DEFAULT, IN_MODELS_RUN, SETTINGS
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.measures import MEASURES, Of
from infrastructure.config.sources.flags import add_config_flags
from infrastructure.core.errors import InputError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase
from infrastructure.monitoring.records.run_list import FINAL
from infrastructure.run.directory import RunDirectory
from infrastructure.run.record import read_run_record

# `evaluation.run_settings` takes these from the run of the model; importing it would be slow here.
# Familiar settings that an evaluation uses.
USED = frozenset(
    {"model.quantization", "data.max_length", "data.train_on", "training.batch_size"}
    | {"training.seed", "output_dir"}
)
FROM_RUN = tuple(
    f"data.{name}"
    for name in ("max_length", "train_on", "chat_template", "over_length", "image_background")
)


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the command."""
    parser.unused = SETTINGS - USED
    parser.texts = {"data.train_on": f"tokens that the loss is computed on ({DEFAULT})"}
    parser.examples = ("temper eval runs/my-run questions.jsonl",)
    parser.add_argument("model", metavar="MODEL", help=phrase("commands.help_model"))
    parser.add_argument("data", nargs="?", metavar="DATA", help=phrase("commands.help_data"))
    parser.add_argument("--against", metavar="OTHER", help=phrase("commands.help_against"))
    parser.add_argument(
        "--measures",
        action="extend",
        type=names_in,
        metavar="NAMES",
        help=phrase(
            "commands.help_measures",
            of_tokens=", ".join(name for name, of in MEASURES.items() if of is Of.TOKENS),
            of_answers=", ".join(name for name, of in MEASURES.items() if of is Of.ROWS),
        ),
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help=phrase("commands.help_max_tokens_of_evaluation"),
    )
    add_json(parser)
    add_config_flags(parser, inherited=FROM_RUN, default_of_inherited=IN_MODELS_RUN)


def run(options: argparse.Namespace) -> int:
    """Evaluate a model and print the results. Impossible requests fail before torch is loaded."""
    config, against = configured(options)
    if options.data is None:
        raise InputError("commands.eval_data_missing", held_out=_own_rows(Path(config.model.name)))
    from infrastructure.deployment.given_paths import check_measured
    from infrastructure.evaluation.request import Request

    request = Request(
        against,
        None if options.measures is None else tuple(options.measures),
        options.max_tokens,
    )
    check_measured(config, against)
    with loading_torch(options.json):
        from infrastructure.deployment.one_call import evaluate_configured

    evaluation, lines = evaluate_configured(config, request)
    show(options.json, evaluation.to_dict(), *lines)
    return ExitCode.DONE


def configured(options: argparse.Namespace) -> tuple[DeploymentConfig, str | None]:
    """Return the configuration, and the model of --against.

    Raises:
        ValueError: if a model does not exist, or a flag has no effect.
    """
    config = configure(options, {"model.name": options.model, "data.path": options.data})
    output_dir = Path(config.output_dir)
    config.model.name = resolve_model(config.model.name, output_dir)
    against = None if options.against is None else resolve_model(options.against, output_dir)
    from infrastructure.evaluation.request import refuse_flags_without_effect

    refuse_flags_without_effect(config)
    return config, against


def _own_rows(model: Path) -> str:
    """Return a text that names the file with the held-out rows of a model's run; "" if there is
    none.
    """
    record = read_run_record(RunDirectory(model.parent if model.name == FINAL else model))
    given = record.get("config", {}).get("data.eval_path")
    held_out = None if given is None else given["value"]
    return phrase("commands.held_out_rows_location", path=held_out) if held_out else ""
