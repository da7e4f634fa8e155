"""Evaluation of a saved model on data, for `temper eval MODEL DATA`."""

import gc
import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.measures import EXACT_MATCH, LOSS
from infrastructure.config.merging.precedence import Layer, spelled_as_given, where
from infrastructure.config.sections.model_config import EmbeddedModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.console import Count
from infrastructure.core.errors import InputError
from infrastructure.core.files import write_json, write_text
from infrastructure.core.messages import Setting, phrase
from infrastructure.core.optional import is_installed
from infrastructure.evaluation.comparison import MeasureDifference, compare, paired, unlike_tokens
from infrastructure.evaluation.evaluation_page import evaluation_page
from infrastructure.evaluation.evaluation_tables import (
    difference_table,
    last_name,
    overall_table,
    short_names,
    task_table,
)
from infrastructure.evaluation.generation import example_of
from infrastructure.evaluation.held_out import MAX_ANSWER_TOKENS, HeldOut
from infrastructure.evaluation.request import Request, unused_because
from infrastructure.evaluation.rows import (
    ALL,
    MeasuredRow,
    ModelRows,
    Questions,
    by_task,
    measure_rows,
)
from infrastructure.evaluation.run_settings import (
    inherit_from_runs,
    precision_of_run,
    quantization_of_run,
    run_folder,
)
from infrastructure.models.saved_model import notes_of_rounded
from infrastructure.models.source import find_source
from infrastructure.monitoring.drawing.formatting import format_number
from infrastructure.monitoring.drawing.metrics_file import spell_numbers
from infrastructure.monitoring.drawing.quantity_names import name_and_value
from infrastructure.monitoring.drawing.tables import PLAIN_LOSS, held_out_loss, render_table
from infrastructure.monitoring.records.run_list import finished_model
from infrastructure.run.directory import RunDirectory
from infrastructure.run.trained_rows import trained_rows
from infrastructure.training.trainer_factory import TrainerFactory

NOTE = "note: "  # begins the line of a note


@dataclass
class Evaluation(HeldOut):
    """The held-out results of a model, with scores, a comparison and the paths of the output files.

    Attributes:
        scores: task ("all" for all rows) → measure → value, low, high (95% interval), rows.
        against: results of a second model: model, metrics, scores, and `differences` by task.
        notes: sentences about how the numbers were measured.
        page, file, answers: paths of the output files: the HTML page, the numbers as JSON, and
            every row as JSON lines.
    """

    scores: dict[str, Any] = field(default_factory=dict)
    against: dict[str, Any] = field(default_factory=dict)
    page: str = ""
    file: str = ""
    answers: str = ""
    notes: list[str] = field(default_factory=list)


def measured_answers() -> Count:
    """Create the progress counter of a measurement."""
    return Count(phrase("evaluation.evaluating_model"), "answers")


def measure_model(
    config: DeploymentConfig,
    request: Request | None = None,
    count: Count | None = None,
) -> tuple[Evaluation, list[str]]:
    """Evaluate the model `config.model.name` on `config.data.path` and write the results.

    A LoRA is loaded on its base model. If a model belongs to a run, rows are tokenized as in that
    run, unless the configuration sets something else. With two models, each uses the settings of
    its own run; a model without a run uses the settings of the other model's run.

    Args:
        count: receives the progress, and with two models, which of them is being measured.

    Returns:
        The results, and lines to print.

    Raises:
        ValueError, TemperError: a model or the data cannot be used.
    """
    request, count = request or Request(), count or measured_answers()
    config.model.name = finished_model(config.model.name)
    other = None if request.against is None else _other(config, request.against)
    configs = [config] if other is None else [config, other]
    notes = [note for one in configs for note in notes_of_rounded(one.model.name)]
    notes += [*set_aside(config), *inherit_from_runs(configs)]
    names = short_names([each.model.name for each in configs])
    if other is not None:
        count.begin(phrase("evaluation.evaluating_first_of_two", name=names[0]))
    first = _measure(config, request, count)
    models = [first]
    if other is not None:
        count.begin(phrase("evaluation.evaluating_second_of_two", name=names[1]))
        gc.collect()  # frees the first model's memory
        set_aside(other)
        answered = {answer.question.place for answer in first.answers}
        models.append(_measure(other, request, count, answered))
    for each, measured, name in zip(configs, models, names, strict=True):
        notes += trained_on(each, measured, "this model" if other is None else name)
    compared = compare(*models) if len(models) == 2 else {}
    lengths = [each.data.max_length for each in (config, other) if each is not None]
    notes += _notes_of(models, config.training.validation_prompts, lengths)
    evaluation = _evaluation(models, compared)
    evaluation.notes = [note.removeprefix(NOTE) for note in notes]
    html = evaluation_page(str(config.data.path), models, compared, evaluation.notes)
    _write(config, evaluation, models, html)
    return evaluation, _lines(config, evaluation, models, compared)


def _other(config: DeploymentConfig, name: str) -> DeploymentConfig:
    """Return a copy of the configuration for evaluating the model `name` instead."""
    other = config.changed([])
    other.model.name = finished_model(name)
    if find_source(other.model.name) == find_source(config.model.name):
        raise InputError("evaluation.compared_with_itself", name=name)
    return other


def _measure(
    config: DeploymentConfig,
    request: Request,
    count: Callable[[int, int], None],
    places: Collection[str] | None = None,
) -> ModelRows:
    config.data.eval_path = config.data.path
    if config.source("model.quantization").layer is Layer.DEFAULT:
        quantization: Any = quantization_of_run(Path(config.model.name))
        config.model.quantization = quantization
    trainer = TrainerFactory().for_run(config, "transformers")
    trainer.keep_precision(precision_of_run(Path(config.model.name)))
    is_usual = config.source("training.validation_prompts").layer is Layer.DEFAULT
    questions = Questions(config.training.validation_prompts, is_usual, places, request.max_tokens)
    return measure_rows(trainer, config.model.name, request.measures, questions, count)


def _notes_of(
    models: Sequence[ModelRows], num_prompts: int | None = None, lengths: Sequence[int] = ()
) -> list[str]:
    """Return notes for the user about how the numbers were measured.

    Args:
        lengths: the maximum example length of each model.
    """
    first = models[0]
    num_answers, notes = len(first.answers), []
    if num_answers < first.num_questions:
        usual = min(num_prompts or 0, first.num_questions)
        why = (
            phrase("evaluation.answer_tokens_limit", max_answer_tokens=MAX_ANSWER_TOKENS)
            if num_answers < usual
            else ""
        )
        notes.append(
            phrase(
                "evaluation.not_all_prompts_answered",
                num_answers=num_answers,
                num_questions=first.num_questions,
                why=why,
            )
        )
    notes += [
        phrase(
            "evaluation.answers_cut_off",
            name=name,
            num_cut=model.num_cut,
            num_answers=len(model.answers),
        )
        for model, name in zip(models, short_names([each.model for each in models]), strict=True)
        if model.num_cut
    ]
    if num_answers and not is_installed("torchmetrics"):
        notes.append(phrase("evaluation.torchmetrics_missing"))
    if len(models) == 2:
        pairs = paired(*models)
        if unlike_tokens(pairs):
            differ = len(set(lengths)) > 1
            notes.append(
                phrase("evaluation.trained_tokens_differ")
                + phrase("evaluation.max_lengths_differ", lengths=" and ".join(map(str, lengths)))
                * differ
            )
        if len(pairs) < max(len(model.rows) for model in models):
            counts = " and ".join(f"{len(model.rows):,}" for model in models)
            notes.append(
                phrase("evaluation.compared_on_common_rows", count=len(pairs), counts=counts)
            )
    return notes


def _evaluation(
    models: Sequence[ModelRows], compared: Mapping[str, Sequence[MeasureDifference]]
) -> Evaluation:
    first = models[0]
    scores = [_scores(model) for model in models]
    matches = {
        task: of[EXACT_MATCH]["value"] for task, of in scores[0].items() if EXACT_MATCH in of
    }
    example = example_of(first.answers)
    evaluation = Evaluation(first.metrics, matches, len(first.answers), example, scores=scores[0])
    if len(models) == 2:
        evaluation.against = {
            "model": models[1].model,
            "metrics": models[1].metrics,
            "scores": scores[1],
            "differences": {
                task: [asdict(one) | {"verdict": one.verdict} for one in of_task]
                for task, of_task in compared.items()
            },
        }
    return evaluation


def _scores(model: ModelRows) -> dict[str, dict[str, Any]]:
    return {
        task: {name: {**asdict(of.interval), "rows": of.num_rows} for name, of in of_task.items()}
        for task, of_task in by_task(model).items()
    }


def _lines(
    config: DeploymentConfig,
    evaluation: Evaluation,
    models: Sequence[ModelRows],
    compared: Mapping[str, Sequence[MeasureDifference]],
) -> list[str]:
    tables = []
    for model, name in zip(models, short_names([each.model for each in models]), strict=True):
        measured = by_task(model)
        headings, rows = overall_table(name, measured[ALL])
        if LOSS not in measured[ALL] or config.training.loss != PLAIN_LOSS:
            label = held_out_loss(config.training.loss)  # named after the loss
            rows = [[label, format_number(model.metrics.get("eval_loss", math.nan)), "", ""], *rows]
        others = {k: v for k, v in model.metrics.items() if k != "eval_loss"}
        rows += [[*name_and_value(key, value), "", ""] for key, value in others.items()]
        tables.append(render_table(headings, rows))
        by_names, of_tasks = task_table(measured, with_intervals=False)
        if of_tasks:
            tables.append(render_table(by_names, of_tasks))
    if compared:
        one, other = short_names([each.model for each in models])
        table = render_table(*difference_table(compared, ("first", "second")))
        which = phrase("evaluation.comparison_legend", first=one, second=other)
        tables.append(f"{which}\n{table}")
    measured_on = f"Measured on {config.data.path}"
    answered = f"({evaluation.num_questions} prompts answered)"
    written = [phrase("evaluation.answers_page", page=evaluation.page)] if evaluation.page else []
    return [
        *(f"{NOTE}{note}" for note in evaluation.notes),
        measured_on,
        "\n\n".join(tables),
        answered,
        *written,
        phrase("evaluation.results_file", file=evaluation.file),
    ]


def trained_on(config: DeploymentConfig, measured: ModelRows, name: str) -> list[str]:
    """Return a note if the model's run was trained on some of the measured rows.

    Args:
        name: the model's name in the note.
    """
    folder = run_folder(Path(config.model.name))
    known = None if folder is None else trained_rows(RunDirectory(folder))
    if known is None or measured.contents is None:
        return []
    num_rows, num_known = len(measured.contents), known.num_among(measured.contents)
    if not num_known:
        return []
    which = "all" if num_known == num_rows else f"{num_known:,} of the"
    return [
        phrase(
            "evaluation.rows_were_trained_on",
            which=which,
            num_rows=num_rows,
            name=name,
            consequence=phrase("evaluation.results_show_memorization"),
        )
    ]


def set_aside(config: DeploymentConfig) -> list[str]:
    """Reset each setting to its default if an evaluation does not use it.

    Returns:
        A note for each such setting that was given. Flags and keywords were refused before.
    """
    notes: list[str] = []
    for key, source in config.sources().items():
        if source.layer is not Layer.DEFAULT and (reason := unused_because(key)) is not None:
            about = {"where": where(source), "reason": reason}
            with spelled_as_given(config.source):
                notes.append(phrase("evaluation.setting_no_effect", key=Setting(key), **about))
    config.data.eval_path, config.data.validation_split = None, 0
    config.model.lora_config, config.model.embedded = None, EmbeddedModelConfig()
    # For training it would be measured; here a batch that does not fit is halved.
    if config.training.batch_size == "auto":
        config.training.batch_size = TrainingConfig().batch_size
    return notes


def _write(
    config: DeploymentConfig, evaluation: Evaluation, models: Sequence[ModelRows], html: str
) -> None:
    """Write the numbers, the answers and the page to the same folder."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(last_name(config.model.name)).name}"
    folder = Path(config.output_dir) / "evaluations"
    file, answers, shown = (folder / f"{name}{end}" for end in (".json", ".jsonl", ".html"))
    evaluation.file, evaluation.page, evaluation.answers = str(file), str(shown), str(answers)
    text = "".join(
        json.dumps(spell_numbers(line), ensure_ascii=False) + "\n"
        for model in models
        for line in map(partial(_answer_line, model.model), model.rows)
    )
    write_text(answers, text)
    write_text(shown, html)
    numbers = {"model": config.model.name, "data": config.data.path, **evaluation.to_dict()}
    write_json(file, numbers)


def _answer_line(model: str, row: MeasuredRow) -> dict[str, Any]:
    line: dict[str, Any] = {"model": model, "row": row.place, "task": row.task}
    if row.loss is not None:
        line |= asdict(row.loss)
    if row.answer is not None:
        question = row.answer.question
        line |= {"prompt": question.prompt, "expected": question.expected}
        line |= {"written": row.answer.text, "is_cut": row.answer.is_cut, **row.scores}
    return line
