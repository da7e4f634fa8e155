"""Evaluation of a model in training on held-out data: loss, exact match, and an example answer."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from infrastructure.config.measures import EXACT_MATCH
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import InputError
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.data.store.examples import GenerationPrompt
from infrastructure.evaluation.generation import (
    Answer,
    exact_match_by_task,
    example_of,
    generate_answers,
)
from infrastructure.evaluation.plain_reading import NUM_QUESTIONS, Trained, fixed_questions
from infrastructure.evaluation.text_scores import scores_by_name
from infrastructure.models.model_inputs import inner_model
from infrastructure.models.preserve import preserve
from infrastructure.monitoring.drawing.metrics_file import spell_numbers
from infrastructure.training.core.state import TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.model_adapters.base_adapter import held_out_identity

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Long answers take long to generate; this many expected tokens are enough for a measurement.
MAX_ANSWER_TOKENS = 8000


@dataclass
class HeldOut:
    """The results of one evaluation on held-out data.

    Attributes:
        metrics: `eval_loss` and the metrics that the model's adapter adds.
        exact_match: the share of exact answers by task, and under "all"; empty if the data has no
            prompts and answers.
        num_questions: the number of held-out prompts that were answered.
        example: one prompt, its expected answer and the model's answer.
        measured_on: an identifier of the measured rows; None if unknown.
    """

    metrics: dict[str, float]
    exact_match: dict[str, float] = field(default_factory=dict)
    num_questions: int = 0
    example: dict[str, str] = field(default_factory=dict)
    measured_on: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the results as JSON values; a number that is not finite becomes a string."""
        return dict(spell_numbers(asdict(self)))

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """Restore the results that `to_dict` returned."""
        metrics = {name: float(value) for name, value in saved["metrics"].items()}
        return cls(**{**saved, "metrics": metrics})

    def table_row(self) -> dict[str, object]:
        """Return the results as one row of the before → after table and of summary.json."""
        return {**self.metrics, "exact_match": self.exact_match}


class MeasuredBefore(Observer):
    """An observer that saves the results of a sharded model before the first training step.

    All ranks evaluate such a model together, because none of them holds the whole model.

    Args:
        keep: called with the results before the first step.
    """

    def __init__(self, trainer: EnhancedTrainer, keep: Callable[[HeldOut], None]) -> None:
        self.trainer, self.keep = trainer, keep

    def train_start(self, state: TrainingState) -> None:
        rows = held_out_identity(self.trainer.initialize_data())
        self.keep(HeldOut(self.trainer.placement.before, measured_on=rows))


def measure(trainer: EnhancedTrainer, count: Callable[[int, int], None] = do_nothing) -> HeldOut:
    """Measure the loss over all held-out examples, and generate greedy answers to some of them.

    `training.validation_prompts` limits the number of answers; fewer are generated if answers are
    long. If no process holds the whole model (it is sharded), the loss is the last one measured
    during training.

    Args:
        count: see `generate_answers`.
    """
    if trainer.adapter.on_disk:
        return HeldOut(dict(trainer.state.evaluation))
    training = trainer.training_config
    metrics = trainer.evaluate()
    only_exact = not training.best_needs_answers or training.best_metric == EXACT_MATCH
    num_questions = training.validation_prompts
    answers = answer_questions(trainer, num_questions, count=count, only_exact=only_exact)
    # The other is measured anyway.
    if training.best_needs_answers and training.best_metric != EXACT_MATCH:
        metrics |= best_of_answers(trainer, answers)
    exact, example = exact_match_by_task(answers), example_of(answers)
    return HeldOut(
        metrics, exact, len(answers), example, held_out_identity(trainer.initialize_data())
    )


def measure_answers(trainer: EnhancedTrainer, poll: Callable[[], None]) -> dict[str, float]:
    """Compute `training.best_metric` on generated answers, without changing the run's state."""
    model, training = trainer.initialize_model(), trainer.training_config
    with preserve(model, random=trainer.device, modes=True), trainer.strategy.evaluating():
        answers = answer_questions(trainer, training.validation_prompts, poll)
    if not answers:
        raise InputError("evaluation.best_metric_needs_answers", metric=training.best_metric)
    return best_of_answers(trainer, answers)


def best_of_answers(trainer: EnhancedTrainer, answers: Sequence[Answer]) -> dict[str, float]:
    """Return the mean of `training.best_metric` over answers, by its key; {} without answers."""
    training = trainer.training_config
    score = scores_by_name([training.best_metric])[training.best_metric]
    values = [score(answer.text, answer.question.expected) for answer in answers]
    return {training.best_metric_key: sum(values) / len(values)} if values else {}


def answer_questions(
    trainer: EnhancedTrainer,
    max_questions: int,
    poll: Callable[[], None] = do_nothing,
    *,
    count: Callable[[int, int], None] = do_nothing,
    only_exact: bool = False,
) -> list[Answer]:
    """Return greedy answers to held-out prompts.

    The list is empty if the model generates no text, or if the data has no prompts.

    Args:
        poll: called between batches; may raise.
        count, only_exact: see `generate_answers`.
    """
    answering = answering_parts(trainer)
    if not max_questions or answering is None:
        return []
    questions = affordable(answering.data.questions(max_questions))
    return answering.answer(trainer, questions, poll=poll, count=count, only_exact=only_exact)


class AnsweringParts(NamedTuple):
    """A model that generates text, its tokenizer, and held-out data with prompts."""

    model: Any
    tokenizer: "PreTrainedTokenizerBase"
    data: DataPipeline

    def answer(
        self, trainer: EnhancedTrainer, questions: Sequence[GenerationPrompt], **options: Any
    ) -> list[Answer]:
        """Return greedy answers in the dtype of the training; see `generate_answers`."""
        model, tokenizer, data = self
        options |= {"pictures": data.pictures}
        with trainer.precision.autocast():
            return generate_answers(model, tokenizer, questions, data.stop_token_ids, **options)


def answering_parts(trainer: EnhancedTrainer) -> AnsweringParts | None:
    """Return the parts that answer held-out prompts.

    None if the model generates no text, or if the data has no prompts.
    """
    model, data = trainer.initialize_model(), trainer.initialize_data()
    tokenizer = trainer.adapter.tokenizer
    if tokenizer is None or not isinstance(data, DataPipeline) or not hasattr(model, "generate"):
        return None
    return AnsweringParts(model, tokenizer, data)


def trained_model(trainer: EnhancedTrainer) -> Trained | None:
    """Return the trained model, with which the saved model is then compared.

    None if the model generates no text, if the data has no prompts, or if the weights are on disk.
    """
    answering = None if trainer.adapter.on_disk else answering_parts(trainer)
    if answering is None or not hasattr(inner_model(answering.model), "generation_config"):
        return None
    model, tokenizer, data = answering
    held_out = data.questions(NUM_QUESTIONS)
    questions = [question for question in held_out if question.prompt_ids]
    return Trained(
        model,
        tokenizer,
        questions or fixed_questions(tokenizer, pictures=data.pictures),
        data.stop_token_ids,
        trainer.precision.autocast,
        data.pictures,
    )


def affordable(questions: list[GenerationPrompt]) -> list[GenerationPrompt]:
    """Return evenly spaced questions, with at most `MAX_ANSWER_TOKENS` in expected answers."""
    num_kept = len(questions)
    while num_kept > 1:
        spread = [round(n) for n in np.linspace(0, len(questions) - 1, num_kept)]
        total = sum(questions[n].expected_length for n in spread)
        if total <= MAX_ANSWER_TOKENS:
            return [questions[n] for n in spread]
        num_kept = max(1, min(num_kept - 1, num_kept * MAX_ANSWER_TOKENS // total))
    return questions[:num_kept]
