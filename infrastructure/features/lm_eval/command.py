"""`temper eval --tasks`: evaluate a model on tasks of lm-evaluation-harness instead of DATA."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from infrastructure.commands.arguments import names_in
from infrastructure.commands.eval import configured
from infrastructure.commands.output import loading_torch, show
from infrastructure.core.errors import InputError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase
from infrastructure.monitoring.records.run_list import naming_runs

OF_TASKS = ("tasks_path", "limit", "num_fewshot")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for tasks to `temper eval`."""
    parser.add_argument(
        "--tasks",
        action="extend",
        type=names_in,
        metavar="NAMES",
        help=phrase("lm_eval.help_tasks"),
    )
    parser.add_argument(
        "--tasks-path", type=Path, metavar="FOLDER", help=phrase("lm_eval.help_tasks_path")
    )
    parser.add_argument("--limit", type=int, metavar="N", help=phrase("lm_eval.help_tasks_limit"))
    parser.add_argument(
        "--num-fewshot", type=int, metavar="N", help=phrase("lm_eval.help_num_fewshot")
    )


def run(options: argparse.Namespace) -> int | None:
    """Evaluate on the tasks of `--tasks`. Return None if `--tasks` was not given."""
    if options.tasks is None:
        of_a_file = phrase("lm_eval.validation_prompts_limit_answers")
        for name in OF_TASKS:
            more = of_a_file if name == "limit" else ""
            _refuse(options, [name], phrase("lm_eval.only_used_by_tasks", more=more))
        return None
    config, against = configured(options)
    _refuse(options, ("measures", "max_tokens"), phrase("lm_eval.tasks_have_own_measures"))
    if options.data is not None:
        raise InputError("lm_eval.data_besides_tasks", data=options.data)
    from infrastructure.deployment.given_paths import check_model
    from infrastructure.features.lm_eval.request import TaskRequest

    request = TaskRequest(
        tuple(options.tasks), options.tasks_path, options.limit, options.num_fewshot
    )
    with naming_runs(Path(config.output_dir)):
        for model in (config.model.name, *([] if against is None else [against])):
            check_model(model)
    with loading_torch(options.json):
        from infrastructure.features.lm_eval.tasks import evaluate_tasks

    facts, lines = evaluate_tasks(config, request, against)
    show(options.json, facts, *lines)
    return ExitCode.DONE


def _refuse(options: argparse.Namespace, names: Sequence[str], reason: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise InputError("lm_eval.flag_without_effect", flag=flag, reason=reason)
