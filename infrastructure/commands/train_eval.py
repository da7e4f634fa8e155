"""`temper train-eval`: measure a trained model on held-out data."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from infrastructure.commands.arguments import add_json, names_in
from infrastructure.commands.output import loading_torch, show
from infrastructure.commands.settings import configure, resolve_model
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.measures import MEASURES
from infrastructure.config.sources.flags import add_config_flags
from infrastructure.core.errors import InputError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.monitoring.records.run_list import FINAL, naming_runs
from infrastructure.run.directory import RunDirectory
from infrastructure.run.record import read_run_record

OF_TASKS = ("tasks_path", "limit", "num_fewshot")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("model", metavar="MODEL", help="a run, its final/, or any model folder")
    parser.add_argument("data", nargs="?", metavar="DATA", help="file, folder or hub data set")
    parser.add_argument(
        "--against", metavar="OTHER", help="a second model, on the same rows; the two are compared"
    )
    parser.add_argument(
        "--measures",
        action="extend",
        type=names_in,
        metavar="NAMES",
        help=f"of the answers, such as exact_match,f1 (default: what fits; {', '.join(MEASURES)})",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="the longest answer (default: a few more than the longest expected one)",
    )
    parser.add_argument(
        "--tasks",
        action="extend",
        type=names_in,
        metavar="NAMES",
        help="instead of DATA: tasks of lm-evaluation-harness, such as gsm8k,hellaswag",
    )
    parser.add_argument(
        "--tasks-path", type=Path, metavar="FOLDER", help="of --tasks: YAML files of your own tasks"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="of --tasks: rows of each task")
    parser.add_argument(
        "--num-fewshot", type=int, metavar="N", help="of --tasks: examples before each question"
    )
    add_json(parser)
    add_config_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Print what was measured; what cannot be is refused before torch is loaded."""
    config = configure(options, {"model.name": options.model, "data.path": options.data})
    output_dir = Path(config.output_dir)
    config.model.name = resolve_model(config.model.name, output_dir)
    against = None if options.against is None else resolve_model(options.against, output_dir)
    from infrastructure.evaluation.request import Request, refuse_flags_without_effect

    refuse_flags_without_effect(config)
    if options.tasks is not None:
        return _on_tasks(options, config, against)
    of_a_file = "; of DATA, --validation-prompts N says how many answers are written"
    for name in OF_TASKS:
        more = of_a_file if name == "limit" else ""
        _refuse(options, [name], f"only --tasks has a use for it{more}")
    if options.data is None:
        raise InputError(
            "commands.train_eval_data_missing_file", model=_own_rows(Path(config.model.name))
        )
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
    """Where the rows lie that the run of a model has held out, where they have a file."""
    record = read_run_record(RunDirectory(model.parent if model.name == FINAL else model))
    given = record.get("config", {}).get("data.eval_path")
    held_out = None if given is None else given["value"]
    return f"; the rows that its run has held out lie in {held_out}" if held_out else ""


def _on_tasks(options: argparse.Namespace, config: DeploymentConfig, against: str | None) -> int:
    _refuse(options, ("measures", "max_tokens"), "tasks bring their own measures and lengths")
    if options.data is not None:
        raise InputError("commands.train_eval_tasks_bring_their", data=options.data)
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
            raise InputError("commands.train_eval_effect_leave_out", flag=flag, reason=reason)
