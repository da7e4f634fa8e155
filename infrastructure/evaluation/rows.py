"""Measurements of a model on single held-out rows, and their aggregation by task."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from infrastructure.config.measures import (
    EXACT_MATCH,
    FINAL_ANSWER,
    LOSS,
    MEASURES,
    PERPLEXITY,
    ROUGE2,
    TOKEN_ACCURACY,
    Of,
)
from infrastructure.core.callbacks import do_nothing
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.data.store.examples import GenerationPrompt
from infrastructure.evaluation.generation import Answer, refused_if_not_finite
from infrastructure.evaluation.held_out import affordable, answering_parts
from infrastructure.evaluation.intervals import Floats, Interval, bootstrap, wilson
from infrastructure.evaluation.row_losses import RowLoss, RowLosses
from infrastructure.evaluation.text_scores import (
    final_answer_of,
    scores_by_name,
    usual_measures,
    words_of,
)
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.forward.evaluation_loss import perplexity

ALL = "all"
SHARES = (EXACT_MATCH, FINAL_ANSWER)  # measures for which a row is either right or wrong


@dataclass
class MeasuredRow:
    """The measurement of one held-out row.

    Attributes:
        place: the source position of the row, file:line.
        task: the kind of task, or "".
        loss: None if the model does not predict next tokens, or if the row was not measured.
        answer: the model's answer; None if the row was not answered.
        scores: scores of the answer by the name of the measure.
    """

    place: str
    task: str = ""
    loss: RowLoss | None = None
    answer: Answer | None = None
    scores: dict[str, float] = field(default_factory=dict)


@dataclass
class ModelRows:
    """The measurements of one model on all held-out rows.

    Attributes:
        model: the name of the model.
        metrics: `eval_loss` and the metrics of the adapter, measured as at the end of a run.
        rows: the measurement of each row, in the order of the data.
        num_questions: the number of rows that have a prompt and an answer.
        contents: a hash of each row's content, (rows,); None: unknown.
    """

    model: str
    metrics: dict[str, float]
    rows: list[MeasuredRow]
    num_questions: int = 0
    contents: npt.NDArray[np.uint64] | None = None

    @property
    def answers(self) -> list[Answer]:
        """The answers of all rows that were answered."""
        return [row.answer for row in self.rows if row.answer is not None]

    @property
    def num_cut(self) -> int:
        """The number of answers that were cut off at the maximum length."""
        return sum(answer.is_cut for answer in self.answers)

    @property
    def tasks(self) -> list[str]:
        """The task names that occur in the rows, sorted."""
        return sorted({row.task for row in self.rows} - {""})


@dataclass(frozen=True)
class Questions:
    """The choice of the rows whose prompts are answered, and the maximum length of answers.

    Attributes:
        most: the maximum number of rows to answer, spread evenly over the data; None: all rows.
        is_limited: True if fewer rows are answered when the answers are long.
        places: the file:line of every row that may be answered; None: all rows may.
        max_tokens: the maximum length of an answer; None: derived from the longest expected answer
            of a batch.
    """

    most: int | None = None
    is_limited: bool = False
    places: Collection[str] | None = None
    max_tokens: int | None = None


def measure_rows(
    trainer: EnhancedTrainer,
    name: str,
    measures: Collection[str] | None = None,
    which: Questions = Questions(),
    count: Callable[[int, int], None] = do_nothing,
) -> ModelRows:
    """Measure the loss on all held-out rows, and generate answers to those that `which` selects.

    Args:
        measures: names of the answer metrics; None: those that suit the data and can be
            computed on this machine.
        count: see `generate_answers`.

    Raises:
        MissingPackageError: a measure needs a package that is not installed.
        ValueError: the model computes values that are NaN or infinite.
    """
    kept: list[RowLosses] = []

    def keeping(*given: Any, **named: Any) -> RowLosses:
        kept.append(RowLosses(*given, **{**named, "name": name}))
        return kept[-1]

    metrics = trainer.evaluate(kind=keeping)
    data = trainer.initialize_data()
    if not isinstance(data, DataPipeline):
        return ModelRows(name, metrics, [])
    losses: Sequence[RowLoss | None] = kept[0].rows
    places, tasks = data.evaluation_places(), data.evaluation_tasks()
    if not losses:
        losses = [None] * len(places)
    facts = zip(places, tasks, losses, strict=True)
    rows = [MeasuredRow(place, task, loss) for place, task, loss in facts]
    answering = answering_parts(trainer)
    questions = data.questions() if answering is not None else []
    chosen = _choose(questions, which)
    if measures is None:
        measures = usual_measures(
            has_final_answers=any(final_answer_of(q.expected) for q in chosen),
            has_pairs=any(len(words_of(q.expected)) > 1 for q in chosen),
        )
    scores = scores_by_name(measures)
    if scores and answering is not None:
        options = {"max_tokens": which.max_tokens, "count": count}
        with refused_if_not_finite(answering.model, name):
            answers = answering.answer(trainer, chosen, **options)
        _keep(rows, answers, scores)
    return ModelRows(name, metrics, rows, len(questions), data.contents(held_out=True))


def _choose(questions: list[GenerationPrompt], which: Questions) -> list[GenerationPrompt]:
    if which.places is not None:
        return [question for question in questions if question.place in which.places]
    if which.most is not None and len(questions) > which.most:
        chosen = np.linspace(0, len(questions) - 1, which.most)
        questions = [questions[int(number)] for number in chosen]
    return affordable(questions) if which.is_limited else questions


def _keep(
    rows: Sequence[MeasuredRow],
    answers: Sequence[Answer],
    scores: dict[str, Callable[[str, str], float]],
) -> None:
    """Store answers and their scores in the rows."""
    by_place: dict[str, list[Answer]] = {}
    for answer in answers:
        by_place.setdefault(answer.question.place, []).append(answer)
    for row in rows:
        if waiting := by_place.get(row.place):
            row.answer = waiting.pop(0)
            expected = row.answer.question.expected
            row.scores = {
                name: score(row.answer.text, expected)
                for name, score in scores.items()
                if name != ROUGE2 or len(words_of(expected)) > 1  # always 0 for single words
            }


@dataclass(frozen=True)
class MeasuredRows:
    """A measured number with its confidence interval, and the number of rows it was measured on."""

    interval: Interval
    num_rows: int


def by_task(model: ModelRows) -> dict[str, dict[str, MeasuredRows]]:
    """Return task → measure → value, with "all" for all rows. Empty measures are left out."""
    groups = {ALL: model.rows}
    groups |= {task: [row for row in model.rows if row.task == task] for task in model.tasks}
    return {
        group: {name: of for name in MEASURES if (of := measured(rows, name)) is not None}
        for group, rows in groups.items()
    }


def measured(rows: Sequence[MeasuredRow], measure: str) -> MeasuredRows | None:
    """Return the mean of one measure over the rows with its interval; None if no row has it."""
    sums, counts = sums_of(rows, measure)
    if len(sums) == 0:
        return None
    if measure in SHARES:
        return MeasuredRows(wilson(int(sums.sum()), len(sums)), len(sums))
    interval = bootstrap(sums, counts)
    if measure == PERPLEXITY:
        interval = Interval(*map(perplexity, astuple(interval)))
    return MeasuredRows(interval, len(sums))


def sums_of(rows: Sequence[MeasuredRow], measure: str) -> tuple[Floats, Floats]:
    """Return the sum and the count of a measure for each row that has it, both of shape (rows,)."""
    if MEASURES[measure] is Of.ROWS:
        values = [row.scores[measure] for row in rows if measure in row.scores]
        return np.array(values, dtype=np.float64), np.ones(len(values))
    losses = [row.loss for row in rows if row.loss is not None and row.loss.num_tokens]
    counts = np.array([loss.num_tokens for loss in losses], dtype=np.float64)
    is_loss = measure in (LOSS, PERPLEXITY)
    assert is_loss or measure == TOKEN_ACCURACY
    sums = [loss.loss_sum if is_loss else float(loss.num_right) for loss in losses]
    return np.array(sums, dtype=np.float64), counts
