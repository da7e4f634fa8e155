"""Measuring: loss over everything, answers to some, and never more than can be afforded."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.data.store.examples import GenerationPrompt
from infrastructure.evaluation import held_out
from infrastructure.evaluation.generation import Answer
from infrastructure.evaluation.held_out import (
    MAX_ANSWER_TOKENS,
    HeldOut,
    MeasuredBefore,
    affordable,
    answer_questions,
    best_of_answers,
    measure,
    trained_model,
)
from infrastructure.evaluation.plain_reading import (
    NUM_QUESTIONS,
    Expected,
    Trained,
    distance,
)
from infrastructure.training.core.state import TrainingState
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
    found = measure(trainer)
    assert found.num_questions == 4
    assert found.metrics["eval_loss"] > 1.0
    assert found.exact_match == {"all": 0.0}
    assert found.example["prompt"].startswith("Reverse")
    assert found.example["expected"] == found.example["prompt"].removeprefix("Reverse ")[::-1]
    assert found.example["written"] != found.example["expected"]
    assert found.metrics.keys() == {"eval_loss"}
    assert found.measured_on is not None
    assert found.measured_on == trainer.initialize_data().held_out_identity
    assert HeldOut.from_dict(found.to_dict()) == found
    assert found.table_row() == {**found.metrics, "exact_match": {"all": 0.0}}


def test_what_the_best_is_chosen_by_is_measured_of_the_answers(trainer: EnhancedTrainer) -> None:
    trainer.training_config.best_metric = "final_answer"
    assert measure(trainer).metrics["eval_final_answer"] == 0
    question = GenerationPrompt("Half of 84?", [1], "#### 42", 5)
    answers = [Answer(question, f"#### {number}") for number in (42, 41, 40, 39)]
    assert best_of_answers(trainer, answers) == {"eval_final_answer": 0.25}
    assert best_of_answers(trainer, []) == {}


def test_no_prompts_no_generation(trainer: EnhancedTrainer) -> None:
    trainer.training_config.validation_prompts = 0
    found = measure(trainer)
    assert (found.num_questions, found.exact_match, found.example) == (0, {}, {})
    trainer.adapter.tokenizer = None  # as that of a model which has no tokens
    assert answer_questions(trainer, 4) == []


def test_a_measurement_is_written_and_read_back_even_when_it_is_not_a_number() -> None:
    found = HeldOut({"eval_loss": float("nan")}, {"all": 0.5}, 2, {"prompt": "a"})
    again = HeldOut.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
    assert str(again) == str(found)


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


def test_of_a_model_on_the_disk_it_is_what_the_training_measured_last(
    trainer: EnhancedTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer.adapter, "on_disk", True)
    assert measure(trainer) == HeldOut({})
    assert trained_model(trainer) is None
    state: Any = SimpleNamespace(evaluation={"eval_loss": 2.5})
    monkeypatch.setattr(EnhancedTrainer, "state", state)
    measured = measure(trainer)
    state.evaluation["eval_loss"] = 9.0
    assert measured.metrics == {"eval_loss": 2.5}


@pytest.mark.parametrize(("name", "tolerance"), [("fp32", 1e-3), ("bf16", 0.05)])
def test_the_trained_model_answers_in_the_number_format_of_the_run(
    trainer: EnhancedTrainer, name: str, tolerance: float
) -> None:
    """Its answers are those that the saved one has to give, within the rounding of that format."""
    trainer.use_precision(name)
    trained = trained_model(trainer)
    assert trained is not None
    assert trained.questions[0].prompt.startswith("Reverse")
    assert len(trained.questions) == NUM_QUESTIONS
    trained.model.eval()
    expected = Expected.of(trained)
    assert expected.tolerance == tolerance
    assert expected.trained.model is None
    with torch.no_grad(), trainer.precision.autocast():
        own = trained.model(input_ids=torch.tensor([trained.questions[0].prompt_ids])).logits
    assert distance(expected.logits[0][:1], own[0, -1:].float()) < tolerance
    assert len(expected.answers) == len(expected.logits) == NUM_QUESTIONS


def test_in_the_middle_of_a_training_a_measurement_leaves_no_trace(
    trainer: EnhancedTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.training_config.best_metric = "final_answer"
    trainer.answering = held_out.measure_answers
    trainer.prepare()
    model = trainer.initialize_model()
    model.train()
    requested: list[int] = []

    def answer(of: EnhancedTrainer, most: int, poll: Callable[[], None]) -> list[Answer]:
        torch.rand(3)
        model.eval()
        requested.append(most)
        poll()
        return [Answer(GenerationPrompt("q", [1], "#### 4", 5), f"#### {n}") for n in (4, 5)]

    monkeypatch.setattr(held_out, "answer_questions", answer)
    polled: list[bool] = []
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    found = held_out.measure_answers(trainer, lambda: polled.append(True))
    assert found == {"eval_final_answer": 0.5}
    assert (requested, polled) == ([4], [True])
    assert torch.equal(torch.rand(1), expected)
    assert model.training
    monkeypatch.setattr(held_out, "answer_questions", lambda *_: [])
    with pytest.raises(ValueError):
        held_out.measure_answers(trainer, lambda: None)


@pytest.mark.parametrize(
    ("metric", "only_exact"),
    [("eval_loss", True), ("exact_match", True), ("final_answer", False), ("f1", False)],
)
def test_answers_are_whole_where_more_is_measured_than_whether_they_are_exact(
    metric: str, only_exact: bool, trainer: EnhancedTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[dict[str, Any]] = []

    def answer(of: EnhancedTrainer, most: int, **more: Any) -> list[Answer]:
        requested.append(more)
        return []

    monkeypatch.setattr(held_out, "answer_questions", answer)
    trainer.training_config.best_metric = metric
    measure(trainer, count := lambda done, of: None)
    assert requested == [{"count": count, "only_exact": only_exact}]


def test_what_the_ranks_have_measured_together_is_kept_with_its_rows() -> None:
    ranks: Any = SimpleNamespace(
        placement=SimpleNamespace(before={"eval_loss": 3.0}),
        initialize_data=lambda: SimpleNamespace(held_out_identity="rows"),
    )
    kept: list[HeldOut] = []
    MeasuredBefore(ranks, kept.append).train_start(TrainingState(torch.nn.Linear(1, 1)))
    assert kept == [HeldOut({"eval_loss": 3.0}, measured_on="rows")]


def test_the_answers_of_a_trainer_are_those_of_its_model_and_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Any] = []
    requested: list[int] = []
    few = questions(3, 5)

    def generate(*parts: Any, **named: Any) -> list[Answer]:
        given.append((parts, named))
        return [Answer(few[0], "x")]

    def chosen(most: int) -> list[GenerationPrompt]:
        requested.append(most)
        return few

    monkeypatch.setattr(held_out, "generate_answers", generate)
    monkeypatch.setattr(held_out, "DataPipeline", SimpleNamespace)
    data = SimpleNamespace(stop_token_ids=[3], pictures="pictures", questions=chosen)
    model = SimpleNamespace(generate=str, generation_config="its own")
    adapter = SimpleNamespace(tokenizer="tokenizer", on_disk=False)
    of_model = {"initialize_model": lambda: model, "initialize_data": lambda: data}
    precision = SimpleNamespace(autocast=nullcontext)
    trainer: Any = SimpleNamespace(**of_model, adapter=adapter, precision=precision)
    poll, count = (lambda: None), (lambda done, of: None)
    assert answer_questions(trainer, 9, poll, count=count, only_exact=True) == [Answer(few[0], "x")]
    more = {"poll": poll, "count": count, "pictures": "pictures", "only_exact": True}
    assert given == [((model, "tokenizer", few, [3]), more)]
    assert answer_questions(trainer, 0) == []
    monkeypatch.setattr(held_out, "inner_model", lambda model: model)
    monkeypatch.setattr(held_out, "fixed_questions", lambda *of, pictures: [*of, pictures])
    expected = Trained(
        *(model, "tokenizer", few, [3], precision.autocast, "pictures"),  # type: ignore[arg-type]
    )
    assert trained_model(trainer) == expected
    assert requested == [9, NUM_QUESTIONS]
    few[:] = [replace(few[0], prompt_ids=[]), few[1]]
    found = trained_model(trainer)
    assert found is not None
    assert found.questions == few[1:]
    few.pop()
    found = trained_model(trainer)
    assert found is not None
    assert found.questions == ["tokenizer", "pictures"]
    del model.generation_config
    assert trained_model(trainer) is None
    del model.generate
    assert trained_model(trainer) is None
    assert answer_questions(trainer, 9) == []
