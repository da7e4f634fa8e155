"""Tokens and masks are TRL's, on each training template that TRL ships.

The whole comparison, with its counts: `python -m tests.training.data.trl_masks`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infrastructure.training.data.encoding.chat_format import TemplateFormat
from infrastructure.training.data.encoding.tokenization import ConversationEncoder, Encoded
from infrastructure.training.data.readers.rows import Conversation, Turn
from infrastructure.training.models.tokenizer import train_tokenizer
from tests.slow import slow
from tests.training.data.builders import CHATML, SENTENCES, byte_level_tokenizer
from tests.training.data.trl_masks import (
    Case,
    by_temper,
    by_transformers,
    cases,
    compare,
    compare_with_trainer,
    fixed_date,
    needs_templates,
    tokenizer_for,
    training_templates,
)

TEMPLATES = training_templates()
EVERY_KIND = cases(12, seed=3)
TALK = Conversation(
    (
        Turn("system", "Be short."),
        Turn("user", "Capital of Ireland?"),
        Turn("assistant", "Dublin"),
        Turn("user", "Of France?"),
        Turn("assistant", "Paris"),
        Turn("user", "Thanks."),
    )
)
# Marks the text of an answer and not its end.
ONLY_TEXT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("kind", ["bytes", "metaspace"])
@pytest.mark.parametrize("family", TEMPLATES)
def test_tokens_and_mask_are_trls(family: str, kind: str) -> None:
    found = compare(family, TEMPLATES[family], EVERY_KIND, kind)
    assert found.different == []
    assert found.counts["same"] >= len(EVERY_KIND) / 2


@needs_templates
@slow
def test_a_real_trainer_learns_the_same(tmp_path: Path) -> None:
    found = compare("qwen3", TEMPLATES["qwen3"], EVERY_KIND)
    with fixed_date():
        compare_with_trainer("qwen3", TEMPLATES["qwen3"], found, tmp_path)
    assert found.different == []
    assert found.counts["same in the trainer"] == found.counts["same"] > 6


@slow
@pytest.mark.parametrize("family", TEMPLATES)
def test_200_conversations(family: str, tmp_path: Path) -> None:
    many = cases(204, seed=11)
    found = compare(family, TEMPLATES[family], many)
    with fixed_date():
        compare_with_trainer(family, TEMPLATES[family], found, tmp_path)
    assert found.different == []
    assert found.counts["same in the trainer"] == found.counts["same"] > 100


def learnt(tokenizer: Any, conversation: Conversation, **settings: Any) -> list[str]:
    """The runs of learnt tokens as text."""
    settings = {"max_length": 500, **settings}
    (result,) = ConversationEncoder(tokenizer, **settings).encode([conversation])
    assert isinstance(result, Encoded), result
    edges = np.flatnonzero(np.diff(np.concatenate([[0], result.example.supervised, [0]])))
    ids = result.example.input_ids
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [tokenizer.decode(ids[start:end]) for start, end in pairs]


def test_the_embedded_model_learns_its_answers_and_nothing_between() -> None:
    tokenizer = train_tokenizer(SENTENCES, 400)
    case = Case(TALK.messages())
    encoder = ConversationEncoder(tokenizer, max_length=500)
    assert by_temper(encoder, case) == by_transformers(tokenizer, case)
    assert learnt(tokenizer, TALK) == [" Dublin<|end|>", " Paris<|end|>"]


def test_an_end_that_the_template_does_not_mark_is_learnt_once() -> None:
    tokenizer = byte_level_tokenizer(ONLY_TEXT)
    assert learnt(tokenizer, TALK) == ["Dublin<|im_end|>", "Paris<|im_end|>"]
    assert TemplateFormat(tokenizer).own_end == "<|im_end|>"


def test_the_next_message_is_no_end() -> None:
    """The template ends nothing: what follows an answer begins the next message."""
    template = ONLY_TEXT.replace("<|im_end|>\n", "")
    texts = learnt(byte_level_tokenizer(template), TALK)
    assert texts == ["Dublin", "Paris<|endoftext|>"]


def test_no_end_is_added_to_one_that_white_space_follows() -> None:
    template = ONLY_TEXT.replace(
        "{{ m.content }}{% end", "{{ m.content + '<|im_end|>\n' }}{% end", 1
    )
    template = template.replace(
        "{{ m.content }}{% endif %}<|im_end|>\n", "{{ m.content }}{% endif %}"
    )
    assert learnt(byte_level_tokenizer(template), TALK) == [
        "Dublin<|im_end|>\n",
        "Paris<|im_end|>\n",
    ]


@needs_templates
@pytest.mark.parametrize("family", ["llama3", "phi3", "qwen3", "gptoss", "deepseekv3", "glm4moe"])
@pytest.mark.parametrize("left_out", [2, 4])
def test_what_the_data_leaves_out_is_not_learnt(family: str, left_out: int) -> None:
    turns = list(TALK.turns)
    turns[left_out] = Turn("assistant", turns[left_out].text, is_learnt=False)
    tokenizer = tokenizer_for(TEMPLATES[family])
    everything = learnt(tokenizer, TALK)
    assert len(everything) == 2
    kept = learnt(tokenizer, Conversation(tuple(turns)))
    assert kept == [everything[1 if left_out == 2 else 0]]


@pytest.mark.parametrize("template", [None, ONLY_TEXT, CHATML], ids=["none", "marked", "unmarked"])
@pytest.mark.parametrize("train_on", ["answers", "all"])
def test_what_the_data_leaves_out_is_not_learnt_in_any_format(
    template: str | None, train_on: str
) -> None:
    turns = list(TALK.turns)
    turns[2] = Turn("assistant", turns[2].text, is_learnt=False)
    texts = "".join(
        learnt(byte_level_tokenizer(template), Conversation(tuple(turns)), train_on=train_on)
    )
    assert "Dublin" not in texts
    assert "Paris" in texts
    assert ("Capital" in texts) == (train_on == "all")
