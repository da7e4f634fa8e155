"""`temper eval`: measure a trained model on held-out data."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from infrastructure.commands.arguments import add_json, names_in
from infrastructure.commands.output import loading_torch, show
from infrastructure.commands.parser import CommandParser
from infrastructure.commands.settings import configure, resolve_model
from infrastructure.commands.short_help import DEFAULT, IN_MODELS_RUN, SETTINGS
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.measures import MEASURES
from infrastructure.config.sources.flags import add_config_flags
from infrastructure.core.errors import InputError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase
from infrastructure.monitoring.records.run_list import FINAL, naming_runs
from infrastructure.run.directory import RunDirectory
from infrastructure.run.record import read_run_record

OF_TASKS = ("tasks_path", "limit", "num_fewshot")
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
        help=phrase("commands.help_measures", measures=", ".join(MEASURES)),
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help=phrase("commands.help_max_tokens_of_evaluation"),
    )
    parser.add_argument(
        "--tasks",
        action="extend",
        type=names_in,
        metavar="NAMES",
        help=phrase("commands.help_tasks"),
    )
    parser.add_argument(
        "--tasks-path", type=Path, metavar="FOLDER", help=phrase("commands.help_tasks_path")
    )
    parser.add_argument("--limit", type=int, metavar="N", help=phrase("commands.help_tasks_limit"))
    parser.add_argument(
        "--num-fewshot", type=int, metavar="N", help=phrase("commands.help_num_fewshot")
    )
    add_json(parser)
    add_config_flags(parser, inherited=FROM_RUN, default_of_inherited=IN_MODELS_RUN)


def run(options: argparse.Namespace) -> int:
    """Measure a model and print the results. Refuse impossible requests before torch is loaded."""
    config = configure(options, {"model.name": options.model, "data.path": options.data})
    output_dir = Path(config.output_dir)
    config.model.name = resolve_model(config.model.name, output_dir)
    against = None if options.against is None else resolve_model(options.against, output_dir)
    from infrastructure.evaluation.request import Request, refuse_flags_without_effect

    refuse_flags_without_effect(config)
    if options.tasks is not None:
        return _on_tasks(options, config, against)
    of_a_file = phrase("commands.validation_prompts_limit_answers")
    for name in OF_TASKS:
        more = of_a_file if name == "limit" else ""
        _refuse(options, [name], phrase("commands.only_used_by_tasks", more=more))
    if options.data is None:
        raise InputError("commands.eval_data_missing", held_out=_own_rows(Path(config.model.name)))
    from infrastructure.deployment.given_paths import check_measured

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


def _own_rows(model: Path) -> str:
    """Return the path of the held-out rows of a model's run, if they are in a file."""
    record = read_run_record(RunDirectory(model.parent if model.name == FINAL else model))
    given = record.get("config", {}).get("data.eval_path")
    held_out = None if given is None else given["value"]
    return phrase("commands.held_out_rows_location", path=held_out) if held_out else ""


def _on_tasks(options: argparse.Namespace, config: DeploymentConfig, against: str | None) -> int:
    _refuse(options, ("measures", "max_tokens"), phrase("commands.tasks_have_own_measures"))
    if options.data is not None:
        raise InputError("commands.eval_tasks_with_data", data=options.data)
    from infrastructure.deployment.given_paths import check_model
    from infrastructure.evaluation.request import TaskRequest

    request = TaskRequest(
        tuple(options.tasks), options.tasks_path, options.limit, options.num_fewshot
    )
    for model in (config.model.name, *([] if against is None else [against])):
        with naming_runs(Path(config.output_dir)):
            check_model(model)
    with loading_torch(options.json):
        from infrastructure.deployment.one_call import evaluate_tasks

    facts, lines = evaluate_tasks(config, request, against)
    show(options.json, facts, *lines)
    return ExitCode.DONE


def _refuse(options: argparse.Namespace, names: Sequence[str], reason: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise InputError("commands.eval_flag_without_effect", flag=flag, reason=reason)
