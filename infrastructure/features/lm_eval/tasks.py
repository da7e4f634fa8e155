"""Evaluation of a saved model on tasks of EleutherAI's lm-evaluation-harness, or custom ones.

The harness renders the prompts, queries the model and scores the answers. This module loads the
model (for LoRA, the adapter on its base model), rejects invalid requests early, and writes the
results.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.core.errors import InputError
from infrastructure.core.files import write_json, write_text
from infrastructure.core.lookup import look_up
from infrastructure.core.messages import phrase
from infrastructure.core.stop_signals import interrupt_on_signals
from infrastructure.deployment.model_repair import repair_model
from infrastructure.evaluation.evaluation_tables import last_name
from infrastructure.evaluation.generation import greedy, refused_if_not_finite
from infrastructure.evaluation.intervals import Interval, Z, paired_difference
from infrastructure.features.lm_eval.request import TaskRequest
from infrastructure.models.model_manager import ModelManager
from infrastructure.monitoring.drawing.formatting import format_number
from infrastructure.monitoring.drawing.tables import render_table
from infrastructure.monitoring.records.run_list import finished_model
from infrastructure.training.core.precision import choose_device

USUAL_BATCH = 8


@dataclass(frozen=True)
class TaskScore:
    """The value of one metric on one task.

    Attributes:
        metric: the metric with its filter, such as `exact_match,strict-match`.
        interval: the value and its 95% interval, whose ends are NaN if there is no standard error.
        is_greater_better: None if the harness does not specify it.
    """

    task: str
    metric: str
    interval: Interval
    num_rows: int | None
    is_greater_better: bool | None = None


@dataclass
class TaskResults:
    """The results of one model on all tasks.

    Attributes:
        samples: the rows of each task, as the harness returns them.
    """

    model: str
    scores: list[TaskScore]
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    used_chat_template: bool = False


def evaluate_tasks(
    config: DeploymentConfig, request: TaskRequest, against: str | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Evaluate `config.model.name` and, if given, `against` on tasks, and write the results.

    Returns:
        The results as JSON values, and lines to show.

    Raises:
        ValueError: a task does not exist, its data cannot be loaded, or a model generates no text
            or computes values that are NaN or infinite.
    """
    for name in (config.model.name, *([against] if against else [])):
        repair_model(Path(name))
    with interrupt_on_signals():
        return _measure(config, request, against)


def _measure(
    config: DeploymentConfig, request: TaskRequest, against: str | None
) -> tuple[dict[str, Any], list[str]]:
    names, manager = _known_tasks(request)
    models = [_run(config, config.model.name, names, manager, request)]
    if against is not None:
        models.append(_run(config, against, names, manager, request))
    differences = task_differences(*models) if len(models) == 2 else []
    facts = _facts(models, differences, request)
    file = _write(config, models, facts)
    return {**facts, "file": str(file)}, _lines(models, differences, file)


def _known_tasks(request: TaskRequest) -> tuple[list[str], Any]:
    """Find the tasks that match the requested names, and load their data.

    The fifteen thousand built-in tasks of the harness are searched only if the folder of custom
    tasks lacks a name.

    Returns:
        The names of the tasks, and the harness's task manager.
    """
    from lm_eval.tasks import TaskManager, get_task_dict

    folder = None if request.folder is None else str(request.folder)
    for include_defaults in (False, True) if folder else (True,):
        manager = TaskManager(include_path=folder, include_defaults=include_defaults)
        matched = [manager.match_tasks([name]) for name in request.names]
        if all(matched):
            break
    for name, matches in zip(request.names, matched, strict=True):
        if not matches:
            look_up("task", name, dict.fromkeys(manager.all_tasks))
    names = list(dict.fromkeys(name for matches in matched for name in matches))
    with _data_explained(names):
        get_task_dict(names, manager)
    return names, manager


@contextmanager
def _data_explained(names: Sequence[str]) -> Iterator[None]:
    """Turn any error inside into an InputError that names the tasks whose data or file failed."""
    try:
        yield
    except Exception as error:  # datasets, the Hub and a task's own code raise anything
        first = str(error).strip().partition("\n")[0]
        raise InputError(
            "lm_eval.task_not_loaded",
            names=", ".join(names),
            error_type=type(error).__name__,
            reason=first,
        ) from error


def _run(
    config: DeploymentConfig, name: str, names: list[str], manager: Any, request: TaskRequest
) -> TaskResults:
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    name = finished_model(name)
    device = choose_device(config.device)
    loaded = ModelManager(ModelConfig(name=name), device=device, seed=0).load()
    if loaded.tokenizer is None or not hasattr(loaded.model, "generate"):
        raise InputError("lm_eval.needs_text_model", name=name)
    loaded.model.eval()
    is_given = config.source("training.batch_size").layer is not Layer.DEFAULT
    by_device = "auto" if device.type == "cuda" else USUAL_BATCH
    size: Any = config.training.batch_size if is_given else by_device
    model: Any = loaded.model
    uses_template = bool(loaded.tokenizer.chat_template)
    # A task that needs sampling sets it itself.
    with greedy(model), refused_if_not_finite(model, name):
        results = lm_eval.simple_evaluate(
            HFLM(pretrained=model, tokenizer=loaded.tokenizer, batch_size=size),
            tasks=list(names),
            task_manager=manager,
            limit=request.limit,
            num_fewshot=request.num_fewshot,
            apply_chat_template=uses_template,
            bootstrap_iters=1000,
        )
    assert results is not None
    samples: dict[str, Any] = results.get("samples", {})
    return TaskResults(name, list(_scores(results)), samples, uses_template)


def _scores(results: Mapping[str, Any]) -> Iterator[TaskScore]:
    counts, better = results.get("n-samples", {}), results.get("higher_is_better", {})
    for task, numbers in {**results["results"], **results.get("groups", {})}.items():
        num_rows = counts.get(task, {}).get("effective")
        for key, value in numbers.items():
            metric, _, filter_name = key.partition(",")
            if not isinstance(value, int | float) or metric.endswith("_stderr") or not filter_name:
                continue
            error = numbers.get(f"{metric}_stderr,{filter_name}")
            half = Z * error if isinstance(error, int | float) else math.nan
            interval = Interval(float(value), value - half, value + half)
            yield TaskScore(task, key, interval, num_rows, better.get(task, {}).get(metric))


@dataclass(frozen=True)
class TaskDifference:
    """The difference of one metric, second model minus first, over the same rows."""

    task: str
    metric: str
    difference: Interval
    num_rows: int

    def verdict(self, is_greater_better: bool | None) -> str:
        """Return a phrase that says which model is better, if the difference is clear."""
        if not self.difference.excludes_zero:
            return "no clear difference"
        if is_greater_better is None:
            return "they differ"
        is_second = (self.difference.value > 0) == is_greater_better
        return "second is better" if is_second else "first is better"


def task_differences(first: TaskResults, second: TaskResults) -> list[TaskDifference]:
    """Return the difference of each metric that has a value per row, paired by row."""
    differences = []
    for score in first.scores:
        metric, _, filter_name = score.metric.partition(",")
        values = [
            _values(model.samples.get(score.task, []), metric, filter_name)
            for model in (first, second)
        ]
        both = sorted(values[0].keys() & values[1].keys())
        if both:
            a, b = (np.array([of_model[row] for row in both]) for of_model in values)
            interval = paired_difference(a, b, np.ones(len(both)))
            differences.append(TaskDifference(score.task, score.metric, interval, len(both)))
    return differences


def _values(samples: Sequence[Mapping[str, Any]], metric: str, name: str) -> dict[int, float]:
    return {
        int(sample["doc_id"]): float(sample[metric])
        for sample in samples
        if sample.get("filter", name) == name and isinstance(sample.get(metric), int | float)
    }


def _lines(
    models: Sequence[TaskResults], differences: Sequence[TaskDifference], file: Path
) -> list[str]:
    lines = [
        phrase("lm_eval.uses_chat_template", model=model.model)
        for model in models
        if model.used_chat_template
    ]
    for model in models:
        rows = [
            [
                f"{score.task} {score.metric.replace(',none', '')}",
                format_number(score.interval.value),
                _range(score.interval),
                "–" if score.num_rows is None else f"{score.num_rows:,}",
            ]
            for score in model.scores
        ]
        lines.append(render_table([model.model, "", "95% interval", "rows"], rows))
    if differences:
        better = {(s.task, s.metric): s.is_greater_better for s in models[0].scores}
        cells = [
            [
                f"{one.task} {one.metric.replace(',none', '')}",
                f"{one.num_rows:,}",
                f"{one.difference.value:+.4g}",
                _range(one.difference),
                one.verdict(better[one.task, one.metric]),
            ]
            for one in differences
        ]
        lines.append(render_table(["second minus first", "rows", "", "95% interval", ""], cells))
    return ["\n\n".join(lines), phrase("evaluation.results_file", file=file)]


def _range(interval: Interval) -> str:
    if math.isnan(interval.low):
        return "–"
    return f"{format_number(interval.low)} to {format_number(interval.high)}"


def _facts(
    models: Sequence[TaskResults], differences: Sequence[TaskDifference], request: TaskRequest
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "tasks": list(request.names),
        "limit": request.limit,
        "num_fewshot": request.num_fewshot,
        "models": [
            {
                "model": model.model,
                "used_chat_template": model.used_chat_template,
                "scores": [
                    {
                        "task": score.task,
                        "metric": score.metric,
                        **_finite(score.interval),
                        "rows": score.num_rows,
                    }
                    for score in model.scores
                ],
            }
            for model in models
        ],
    }
    if differences:
        facts["differences"] = [
            {
                "task": one.task,
                "metric": one.metric,
                **_finite(one.difference),
                "rows": one.num_rows,
            }
            for one in differences
        ]
    return facts


def _finite(interval: Interval) -> dict[str, float | None]:
    named = {"value": interval.value, "low": interval.low, "high": interval.high}
    return {key: value if math.isfinite(value) else None for key, value in named.items()}


def _write(config: DeploymentConfig, models: Sequence[TaskResults], facts: dict[str, Any]) -> Path:
    folder = Path(config.output_dir) / "evaluations"
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(last_name(models[0].model)).name}-tasks"
    text = "".join(
        json.dumps({"model": model.model, "task": task, **row}, default=str, ensure_ascii=False)
        + "\n"
        for model in models
        for task, rows in model.samples.items()
        for row in rows
    )
    write_text(folder / f"{name}.jsonl", text)
    write_json(folder / f"{name}.json", facts)
    return folder / f"{name}.json"
