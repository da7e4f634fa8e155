"""Greedy answers: batches, padding and stopping do not change them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.evaluation.generation import Answer, exact_match_by_task, generate_answers
from infrastructure.training.data.store.examples import GenerationPrompt


def question(prompt_ids: list[int], expected: str = "x", task: str = "") -> GenerationPrompt:
    return GenerationPrompt("prompt", prompt_ids, expected, 6, task)


QUESTIONS = [question([5, 6, 7]), question([9] * 12), question([20, 21]), question([30] * 7)]


@pytest.fixture(scope="module")
def loaded(saved_llama: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(saved_llama)
    return model, AutoTokenizer.from_pretrained(saved_llama)


def test_answers_come_in_the_order_of_the_questions_whatever_the_batch(
    loaded: tuple[Any, Any],
) -> None:
    alone = [generate_answers(*loaded, [q], [2])[0].text for q in QUESTIONS]
    together = [a.text for a in generate_answers(*loaded, QUESTIONS, [2], batch_size=3)]
    assert together == alone
    assert len(set(together)) > 1


def test_an_answer_ends_at_a_stop_token(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    prompt = torch.tensor([QUESTIONS[0].prompt_ids])
    written = model.generate(prompt, max_new_tokens=14, do_sample=False, eos_token_id=[2])
    ids = written[0, prompt.shape[1] :].tolist()
    stop = next(token for token in ids if token != ids[0])
    text = generate_answers(model, tokenizer, QUESTIONS[:1], [2, stop])[0].text
    assert text == tokenizer.decode(ids[: ids.index(stop)])


def test_training_mode_comes_back(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    model.train()
    generate_answers(model, tokenizer, QUESTIONS[:1], [2])
    assert model.training
    model.eval()


def test_exact_match_is_counted_by_task() -> None:
    answers = [
        Answer(question([1], "yes", "a"), " yes\n"),
        Answer(question([1], "yes", "a"), "yes."),
        Answer(question([1], "no", "b"), "no"),
        Answer(question([1], "no"), "maybe"),
    ]
    assert exact_match_by_task(answers) == {"a": 0.5, "b": 1.0, "all": 0.5}
    assert exact_match_by_task([]) == {}
