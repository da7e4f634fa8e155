"""Is what the model learns what it is meant to learn? Looks at tokens, runs no model."""

import contextlib
import itertools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from infrastructure.testing.results import CheckResult
from infrastructure.testing.subject import Subject
from infrastructure.training.data.chat_format import TEMPLATE_DATE, special_tokens
from infrastructure.training.data.data_pipeline import DataPipeline
from infrastructure.training.data.examples import TokenizedExample
from infrastructure.training.data.rows import Conversation, Turn
from infrastructure.training.data.tokenization import (
    ConversationEncoder,
    TokenIds,
    begins_with,
    num_common,
)
from infrastructure.training.models.packing_check import token_embeddings

NUM_PROMPTS = 8
ROOM_FOR_END = 8  # tokens that a template may write after an answer
NO_TEXT = "this model reads no text"
LOOK = "look at the token preview in report.html, and at data.train_on and data.chat_template"


def check_labels(subject: Subject) -> CheckResult:
    """Every example has tokens that are learnt, they reach the loss, and the model knows them."""
    if not subject.reads_text:
        return CheckResult("labels", "skipped", NO_TEXT)
    examples: list[TokenizedExample] = subject.candidates
    wrong = _first_wrong(subject, examples)
    learnt = sum(int(example.supervised.sum()) for example in examples)
    share = learnt / max(1, sum(len(example.input_ids) for example in examples))
    numbers = {"learnt_share": share, "num_examples": float(len(examples))}
    if wrong:
        return CheckResult("labels", "fail", wrong, LOOK, numbers=numbers)
    text = f"{100 * share:.0f} % of the tokens of {len(examples)} examples are learnt"
    return CheckResult("labels", "pass", text, numbers=numbers)


def _first_wrong(subject: Subject, examples: Sequence[TokenizedExample]) -> str:
    num_tokens = token_embeddings(subject.model).num_embeddings
    for number, example in enumerate(examples, 1):
        if not example.supervised.any():
            return f"example {number} has no token that is learnt"
        if example.supervised[0]:
            return f"example {number} learns its first token, which nothing predicts"
        if int(example.input_ids.max()) >= num_tokens or int(example.input_ids.min()) < 0:
            return (
                f"example {number} has token {int(example.input_ids.max())}, and the model"
                f" knows {num_tokens}"
            )
    asked, reached = _targets(subject, examples[: len(subject.sample)])
    if not np.array_equal(asked, reached):
        return (
            f"of {asked.size} tokens that are to be learnt {reached.size} reach the loss,"
            " and they are not the same"
        )
    return _learns_prompts(subject, examples)


def _targets(
    subject: Subject, examples: Sequence[TokenizedExample]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The tokens that the examples want learnt, and those that the batch asks for; sorted."""
    asked = np.concatenate([example.input_ids[example.supervised] for example in examples])
    batch = subject.adapter.prepare_batch(examples)
    found = batch.get("targets")
    if found is None:
        labels = batch["labels"]
        found = labels[labels >= 0]
    return np.sort(asked), np.sort(found.cpu().numpy())


def _learns_prompts(subject: Subject, examples: Sequence[TokenizedExample]) -> str:
    """With `train_on: answers` an example that learns everything has lost its mask."""
    if subject.adapter.data_config.train_on != "answers":
        return ""
    pipeline = subject.data
    if not isinstance(pipeline, DataPipeline) or not pipeline.evaluation_rows(1):
        return ""  # plain text, or nothing to tell it by
    if all(bool(example.supervised[1:].all()) for example in examples):
        return "every token is learnt, the prompts too, although data.train_on is answers"
    return ""


def check_ends(subject: Subject) -> CheckResult:
    """The model learns to stop: the last token that is learnt is one that ends generation."""
    if not subject.reads_text:
        return CheckResult("end of answers", "skipped", NO_TEXT)
    examples: list[TokenizedExample] = subject.candidates
    stops = _stop_tokens(subject)
    ended = [e for e in examples if _learns_to_end(subject, e, stops)]
    numbers = {"ended_share": len(ended) / max(1, len(examples))}
    names = ", ".join(repr(name) for name in sorted(stops.values())[:3])
    if not ended:
        text = f"no answer ends with a token that stops generation ({names})"
        remedy = "the model would never learn to stop: give data.chat_template its end-of-turn"
        return CheckResult("end of answers", "fail", text, remedy, numbers=numbers)
    if len(ended) < len(examples):
        text = f"{len(examples) - len(ended)} of {len(examples)} answers end without {names}"
        remedy = "they were cut: raise data.max_length, or data.over_length quarantine"
        return CheckResult("end of answers", "warn", text, remedy, numbers=numbers)
    asked, reached = _targets(subject, ended[: len(subject.sample)])
    if np.isin(reached, list(stops)).sum() < np.isin(asked, list(stops)).sum():
        text = f"{names} ends every answer and does not reach the loss"
        remedy = "usually the padding token is the same one, and was masked"
        return CheckResult("end of answers", "fail", text, remedy, numbers=numbers)
    text = f"all {len(examples)} answers end with {names}, and it is learnt"
    return CheckResult("end of answers", "pass", text, numbers=numbers)


def _learns_to_end(subject: Subject, example: TokenizedExample, stops: Collection[int]) -> bool:
    """Whether a stop token is the last word that is learnt; where all are, templates may go on a
    bit."""
    last = 1 if subject.adapter.data_config.train_on == "answers" else ROOM_FOR_END
    learnt = example.input_ids[example.supervised][-ROOM_FOR_END:]
    tokenizer = subject.adapter.tokenizer
    words = [int(token) for token in learnt if tokenizer.decode([int(token)]).strip()]
    return any(token in stops for token in words[-last:])


def _stop_tokens(subject: Subject) -> dict[int, str]:
    special = special_tokens(subject.adapter.tokenizer)
    found = getattr(subject.data, "stop_token_ids", [subject.adapter.tokenizer.eos_token_id])
    return {number: special.get(number, str(number)) for number in found}


def check_template(subject: Subject) -> CheckResult:
    """What stands before an answer is the same in training and where the model will be used.

    Used means: the tokenizer's own chat template with its generation prompt; without a template,
    what Temper's generation gives to the model.
    """
    pipeline = subject.data
    if not subject.reads_text or not isinstance(pipeline, DataPipeline):
        return CheckResult("prompts", "skipped", NO_TEXT)
    for number, example in enumerate(subject.candidates, 1):
        ids, bos = example.input_ids, subject.adapter.tokenizer.bos_token_id
        if bos is not None and len(ids) > 1 and ids[0] == ids[1] == bos:
            text = f"example {number} begins with the BOS token twice"
            return CheckResult("prompts", "fail", text, "remove it from data.chat_template")
    prompts = _prompts_in_use(pipeline)
    if not prompts:
        return _check_invented(pipeline)
    for ids, nearest in zip(prompts, _nearest_examples(pipeline, prompts), strict=True):
        if not begins_with(pipeline.tokenizer, nearest, ids):
            return _differ(pipeline, ids, num_common(nearest, ids))
    text = f"{len(prompts)} held-out prompts have the same tokens in training and in use"
    return CheckResult("prompts", "pass", text, numbers={"num_prompts": float(len(prompts))})


def _check_invented(pipeline: DataPipeline) -> CheckResult:
    """Nothing is held out, so a conversation of our own goes the same two ways."""
    turns = (Turn("user", "How much is 2 + 3?"), Turn("assistant", "5"))
    encoder = ConversationEncoder(pipeline.tokenizer, max_length=pipeline.config.max_length)
    (encoded,) = encoder.encode([Conversation(turns)])
    example = getattr(encoded, "example", None)
    if example is None:
        text = "nothing is held out, and the template takes no plain question"
        return CheckResult("prompts", "skipped", text)
    ids = _prompt_in_use(pipeline, [{"role": "user", "content": turns[0].text}])
    ids = ids or encoder.prompt_ids(turns[:1])
    if not begins_with(pipeline.tokenizer, example.input_ids, ids):
        return _differ(pipeline, ids, num_common(example.input_ids, ids))
    return CheckResult("prompts", "pass", "a question has the same tokens in training and in use")


def _differ(pipeline: DataPipeline, ids: Sequence[int], common: int) -> CheckResult:
    shown = pipeline.tokenizer.decode(list(ids[common : common + 5]))
    text = (
        f"in use a prompt goes on after {common} tokens with {shown!r}; in training no example"
        " does: the model would be asked otherwise than it was taught"
    )
    remedy = "prepare the data with the tokenizer and template that the model is saved with"
    return CheckResult("prompts", "fail", text, remedy)


def _nearest_examples(pipeline: DataPipeline, prompts: list[list[int]]) -> list[TokenIds]:
    """Of each prompt the held-out example that agrees with it longest."""
    nearest: list[TokenIds] = [[] for _ in prompts]
    most = [-1] * len(prompts)
    with contextlib.closing(pipeline.evaluation_batches(64)) as batches:
        for batch in batches:
            for example, (number, ids) in itertools.product(batch, enumerate(prompts)):
                common = num_common(example.input_ids, ids)
                if common > most[number]:
                    most[number], nearest[number] = common, example.input_ids
            if most == list(map(len, prompts)):
                break
    return nearest


def _prompts_in_use(pipeline: DataPipeline) -> list[list[int]]:
    """The prompts of some held-out rows, of those that were not cut for training."""
    rows, questions = pipeline.evaluation_rows(NUM_PROMPTS), pipeline.questions(NUM_PROMPTS)
    prompts = []
    for row, question in zip(rows, questions, strict=True):
        ids = _prompt_in_use(pipeline, row.messages) or question.prompt_ids
        if len(ids) + question.expected_length + ROOM_FOR_END < pipeline.config.max_length:
            prompts.append(ids)
    return prompts


def _prompt_in_use(pipeline: DataPipeline, messages: list[dict[str, str]]) -> list[int] | None:
    """What a chat would be given; None where the tokenizer has no template."""
    tokenizer = pipeline.tokenizer
    if not tokenizer.chat_template:
        return None
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, strftime_now=TEMPLATE_DATE.strftime
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
