"""Greedy answers: batches, padding and stopping do not change them."""

import copy
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.data.store.examples import GenerationPrompt
from infrastructure.evaluation import generation
from infrastructure.evaluation.generation import (
    Answer,
    WrongAnswers,
    exact_match_by_task,
    generate_answers,
    refused_if_not_finite,
)
from infrastructure.evaluation.text_scores import exact_match


def question(prompt_ids: list[int], expected: str = "x", task: str = "") -> GenerationPrompt:
    return GenerationPrompt("prompt", prompt_ids, expected, 6, task)


QUESTIONS = [question([5, 6, 7]), question([9] * 12), question([20, 21]), question([30] * 7)]


@pytest.fixture(scope="module")
def loaded(saved_llama: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(saved_llama)
    return model, AutoTokenizer.from_pretrained(saved_llama)


def test_answers_come_in_the_order_of_the_questions_whatever_the_batch(
    loaded: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "BATCH_TOKENS", 1)
    alone = [generate_answers(*loaded, [q], [2])[0].text for q in QUESTIONS]
    counts: list[tuple[int, int]] = []
    answers = generate_answers(
        *loaded, QUESTIONS, [2], batch_size=3, count=lambda *numbers: counts.append(numbers)
    )
    together = [answer.text for answer in answers]
    assert together == alone
    assert counts == [(0, len(QUESTIONS)), (3, len(QUESTIONS))]
    assert len(set(together)) > 1


@pytest.mark.parametrize(
    ("logits", "is_refused"),
    [
        ([0.0, -math.inf, 3.0], False),  # a token that the model never writes
        ([-math.inf] * 3, True),
        ([0.0, math.nan, 3.0], True),
        ([0.0, math.inf, 3.0], True),
    ],
)
def test_a_token_is_chosen_only_from_logits_with_a_finite_maximum(
    logits: list[float], is_refused: bool
) -> None:
    class Model(torch.nn.Linear):
        def forward(self, last: torch.Tensor) -> Any:
            first = torch.full((2, 1, 3), math.nan)  # of a token that is padding
            return SimpleNamespace(logits=torch.cat([first, last], dim=1))

    model, last = Model(2, 2), torch.tensor([[[1.0, 2.0, 3.0]], [logits]])
    with refused_if_not_finite(model, "mine"):
        if not is_refused:
            model(last)
            return
        with pytest.raises(ValueError, match=r"evaluation\.model_not_finite\(model=mine\)"):
            model(last)
        with torch.no_grad():
            model.bias[1] = math.nan
        refusal = r"evaluation\.weights_not_finite\(model=mine, count=1, weight=bias\)"
        with pytest.raises(ValueError, match=refusal):
            model(last)
    model(last)


def test_a_model_is_refused_only_if_it_is_to_be(loaded: tuple[Any, Any]) -> None:
    """During training, the loss decides."""
    model, tokenizer = copy.deepcopy(loaded[0]), loaded[1]
    sound = [answer.text for answer in generate_answers(model, tokenizer, QUESTIONS, [2])]
    with refused_if_not_finite(model, "mine"):
        checked = generate_answers(model, tokenizer, QUESTIONS, [2])
        assert [answer.text for answer in checked] == sound
        with torch.no_grad():
            model.model.norm.weight[0] = math.nan
        with pytest.raises(ValueError, match=r"weight=model\.norm\.weight"):
            generate_answers(model, tokenizer, QUESTIONS, [2])
    assert len(generate_answers(model, tokenizer, QUESTIONS, [2])) == len(QUESTIONS)


@pytest.mark.parametrize("fails", [False, True])
def test_afterwards_the_generation_configuration_is_the_models_own(
    loaded: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """It is saved with the model, so settings that only measuring leaves out must be there."""
    model, tokenizer = loaded
    own, written = model.generation_config, model.generate
    monkeypatch.setattr(own, "repetition_penalty", 1.3)
    seen: list[Any] = []

    def generate(**given: Any) -> Any:
        seen.append(model.generation_config)
        if fails:
            raise RuntimeError("planted")
        return written(**given)

    monkeypatch.setattr(model, "generate", generate)
    with pytest.raises(RuntimeError, match="planted") if fails else nullcontext():
        generate_answers(model, tokenizer, QUESTIONS[:1], [2])
    assert model.generation_config is own
    assert seen[0].repetition_penalty != 1.3
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    for number, name in enumerate(names):
        monkeypatch.setattr(own, name, 20 + number)
    with generation.greedy(model):
        plain = model.generation_config
        assert plain.repetition_penalty != 1.3
        assert [getattr(plain, name) for name in names] == [20, 21, 22, 23]


@pytest.mark.parametrize(
    ("num_tokens", "sizes"),
    [
        ([], []),
        ([1000] * 70, [32, 32, 6]),  # as many as were asked for, however long
        ([100] * 70, [32, 32, 6]),
        ([48] * 130, [64, 64, 2]),
        ([12] * 200, [200]),
        ([12] * 100 + [48] * 10, [100, 10]),  # all of a batch are as long as its longest
        ([48, *[12] * 100], [64, 37]),
        ([100] * 32 + [12] * 200, [32, 200]),
    ],
)
def test_short_questions_are_answered_more_at_once(num_tokens: list[int], sizes: list[int]) -> None:
    batches = generation._batches(range(len(num_tokens)), num_tokens, 32, 3072)
    assert [len(batch) for batch in batches] == sizes
    assert [number for batch in batches for number in batch] == list(range(len(num_tokens)))


def test_pictures_do_not_lie_in_larger_batches(loaded: tuple[Any, Any]) -> None:
    counts: list[tuple[int, int]] = []
    pictures: Any = SimpleNamespace(inputs=lambda ids, of_questions: {})
    generate_answers(
        *loaded,
        QUESTIONS,
        [2],
        batch_size=3,
        pictures=pictures,
        count=lambda *numbers: counts.append(numbers),
    )
    assert counts == [(0, 4), (3, 4)]


def test_an_answer_that_cannot_be_exact_ends_and_no_other_does(loaded: tuple[Any, Any]) -> None:
    """The first one is whole, because it is shown."""
    whole = generate_answers(*loaded, QUESTIONS, [2])
    expected = ["no", whole[1].text, "no", "no"]
    questions = [replace(q, expected=text) for q, text in zip(QUESTIONS, expected, strict=True)]
    answers = generate_answers(*loaded, questions, [2], only_exact=True)
    assert [answer.text for answer in answers[:2]] == [answer.text for answer in whole[:2]]
    assert [exact_match(a.text, a.question.expected) for a in answers] == [0, 1, 0, 0]
    for ended, all_of_it in zip(answers[2:], whole[2:], strict=True):
        assert all_of_it.text.startswith(ended.text)
        assert len(ended.text) < len(all_of_it.text)


@pytest.mark.parametrize(
    ("expected", "written", "is_wrong"),
    [
        ("one two three", "one t", False),
        ("one two three", " one two three", False),
        ("one two three", "one two three four five", True),
        ("one two three", "one six three", True),
        ("one two three", "one two f\ufffd", False),
        ("one", "two", False),  # the last characters may still change
        ("", "", False),
    ],
)
def test_what_may_still_change_is_not_judged(expected: str, written: str, is_wrong: bool) -> None:
    tokenizer: Any = SimpleNamespace(batch_decode=lambda ids, **_: [written])
    judge = WrongAnswers(tokenizer, [question([1], expected)], width=1, lengths=[100])
    assert not judge(torch.zeros(1, 4), None).any()  # it looks at every fourth token
    assert judge(torch.zeros(1, 5), None).tolist() == [is_wrong]
    assert judge(torch.zeros(1, 6), None).tolist() == [is_wrong]


def test_an_answer_ends_at_its_own_length_whatever_the_others_may_have() -> None:
    tokenizer: Any = SimpleNamespace(batch_decode=lambda ids, **_: [""] * len(ids))
    judge = WrongAnswers(tokenizer, [question([1])] * 2, width=1, lengths=[5, 9])
    ended = [judge(torch.zeros(2, 1 + length), None).tolist() for length in (4, 5, 8, 9)]
    assert ended == [[False, False], [True, False], [True, False], [True, True]]


def test_an_answer_may_be_as_long_as_the_longest_expected_one_of_its_batch(
    loaded: tuple[Any, Any],
) -> None:
    """It may be right in other words; one that has to be exact has its own length."""
    _, tokenizer = loaded
    long = replace(QUESTIONS[1], expected_length=40)
    alone = generate_answers(*loaded, [QUESTIONS[0]], [2])[0]
    assert alone.is_cut
    beside = generate_answers(*loaded, [long, QUESTIONS[0]], [2])[1]
    assert beside.text.startswith(alone.text)
    assert len(tokenizer(beside.text).input_ids) > 2 * len(tokenizer(alone.text).input_ids)
    exact = replace(QUESTIONS[0], expected=alone.text)
    answers = generate_answers(*loaded, [long, exact, long], [2], only_exact=True)
    assert answers[1].text.strip() == alone.text.strip()


def test_a_model_with_a_way_of_its_own_to_write_is_not_stopped(loaded: tuple[Any, Any]) -> None:
    _, tokenizer = loaded

    class OwnModel(torch.nn.Module):
        def generate(
            self,
            input_ids: torch.Tensor,
            attention_mask: torch.Tensor,
            max_new_tokens: int,
            do_sample: bool,
            pad_token_id: int,
            eos_token_id: list[int],
        ) -> torch.Tensor:
            return torch.cat([input_ids, input_ids.new_full((len(input_ids), 1), 7)], dim=1)

    own = OwnModel()
    own.weight = torch.nn.Parameter(torch.zeros(1))
    answers = generate_answers(own, tokenizer, QUESTIONS, [2], only_exact=True)
    assert len({answer.text for answer in answers}) == 1


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


def test_an_answer_may_be_a_few_tokens_longer_than_expected(
    loaded: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[Any, ...]] = []

    def generate(model: Any, tokenizer: Any, questions: Any, ends: Any, *more: Any) -> list[Answer]:
        given.append((len(questions), ends, *more))
        return [Answer(question, "x") for question in questions]

    monkeypatch.setattr(generation, "_generate_batch", generate)
    polled: list[bool] = []
    generate_answers(*loaded, QUESTIONS, [5, 1], poll=lambda: polled.append(True))
    assert given == [(4, [1, 2, 5], [14] * 4, None, False)]
    given.clear()
    generate_answers(*loaded, QUESTIONS, [5], max_tokens=3, only_exact=True)
    assert given == [(1, [2, 5], [3], None, False), (3, [2, 5], [3] * 3, None, True)]
    assert polled == [True]
    given.clear()
    assert generate_answers(*loaded, [], [5], only_exact=True) == []
    assert given == []
