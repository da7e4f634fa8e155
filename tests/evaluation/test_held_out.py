"""Measuring: loss over everything, answers to some, and never more than can be afforded."""

import json
from pathlib import Path

import pytest

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.evaluation.generation import Answer
from infrastructure.evaluation.held_out import (
    MAX_ANSWER_TOKENS,
    HeldOut,
    affordable,
    answer_questions,
    best_of_answers,
    measure,
)
from infrastructure.training.data.store.examples import GenerationPrompt
from infrastructure.training.enhanced_trainer import EnhancedTrainer


@pytest.fixture
def trainer(saved_llama: Path, tmp_path: Path) -> EnhancedTrainer:
    rows = [{"prompt": f"Reverse {n}", "completion": str(n)[::-1]} for n in range(10, 40)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return EnhancedTrainer(
        ModelConfig(name=str(saved_llama)),
        TrainingConfig(validation_prompts=4),
        DataConfig(path=str(path), max_length=64, validation_split=0.3, num_workers=0),
        device="cpu",
        cache_config=CacheConfig(directory=str(tmp_path / "cache")),
    )


def test_as_many_prompts_are_answered_as_configured(trainer: EnhancedTrainer) -> None:
    held_out = measure(trainer)
    assert held_out.num_questions == 4
    assert held_out.metrics["eval_loss"] > 1.0
    assert held_out.exact_match == {"all": 0.0}
    assert held_out.example["prompt"].startswith("Reverse")
    assert held_out.metrics.keys() == {"eval_loss"}


def test_what_the_best_is_chosen_by_is_measured_of_the_answers(trainer: EnhancedTrainer) -> None:
    trainer.training_config.best_metric = "final_answer"
    assert measure(trainer).metrics["eval_final_answer"] == 0
    question = GenerationPrompt("Half of 84?", [1], "#### 42", 5)
    answers = [Answer(question, f"#### {number}") for number in (42, 41, 40, 39)]
    assert best_of_answers(trainer, answers) == {"eval_final_answer": 0.25}
    assert best_of_answers(trainer, []) == {}


def test_no_prompts_no_generation(trainer: EnhancedTrainer) -> None:
    trainer.training_config.validation_prompts = 0
    held_out = measure(trainer)
    assert (held_out.num_questions, held_out.exact_match, held_out.example) == (0, {}, {})
    trainer.adapter.tokenizer = None  # as that of a model which has no tokens
    assert answer_questions(trainer, 4) == []


def test_a_measurement_is_written_and_read_back_even_when_it_is_not_a_number() -> None:
    held_out = HeldOut({"eval_loss": float("nan")}, {"all": 0.5}, 2, {"prompt": "a"})
    again = HeldOut.from_dict(json.loads(json.dumps(held_out.to_dict(), allow_nan=False)))
    assert str(again) == str(held_out)


def questions(count: int, length: int) -> list[GenerationPrompt]:
    return [GenerationPrompt(str(n), [1], "x", length) for n in range(count)]


def test_long_answers_are_fewer() -> None:
    assert len(affordable(questions(300, 5))) == 300
    few = affordable(questions(300, 200))
    assert len(few) == MAX_ANSWER_TOKENS // 200
    assert (few[0].prompt, few[-1].prompt) == ("0", "299")  # from everywhere
    assert len(affordable(questions(200, 41))) == 195  # and not every second one
    assert len(affordable(questions(3, 9000))) == 1
    assert sum(question.expected_length for question in few) <= MAX_ANSWER_TOKENS
    assert len(few) > 30


def test_as_many_fewer_are_answered_as_they_are_too_long() -> None:
    """At once: one fewer after the other takes long where there are many."""
    short, long = questions(9, 1), questions(9, MAX_ANSWER_TOKENS * 3 // 5)
    kept = affordable([*short[:3], *long[3:5], *short[5:]])
    assert [question.prompt for question in kept] == ["0", "2", "4", "6", "8"]
