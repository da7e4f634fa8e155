"""Tokens and masks are TRL's, on each training template that TRL ships.

The whole comparison, with its counts: `python -m tests.data.trl_masks`.
"""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infrastructure.data.encoding.chat_format import TEMPLATE_DATE, TemplateFormat
from infrastructure.data.encoding.tokenization import ConversationEncoder, Encoded
from infrastructure.data.readers.rows import Conversation, Turn
from infrastructure.models.tokenizer import train_tokenizer
from tests.data.builders import CHATML, SENTENCES, byte_level_tokenizer
from tests.data.trl_masks import (
    REASONS,
    Case,
    Learnt,
    by_temper,
    by_transformers,
    cases,
    compare,
    compare_with_trainer,
    fixed_date,
    learnt_texts,
    model_families,
    model_template,
    needs_templates,
    reasons_of,
    tokenizer_for,
    training_templates,
)
from tests.slow import slow

TEMPLATES = training_templates()
FAMILIES = model_families()
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


@pytest.mark.parametrize("family", FAMILIES)
def test_what_models_have_themselves_differs_for_known_reasons_only(family: str) -> None:
    check_own(family, EVERY_KIND)


def check_own(family: str, given: list[Case]) -> None:
    own = model_template(family)
    found = compare(family, TEMPLATES.get(family, own), given, model=own)
    assert found.different == []
    explained = sum(n for name, n in found.counts.items() if name.split("; ")[0] in REASONS)
    assert found.counts["same"] + explained >= len(given) / 2


@needs_templates
def test_a_difference_of_any_other_kind_is_none_that_is_explained() -> None:
    tokenizer = tokenizer_for(model_template("gemma3"))
    encoder = ConversationEncoder(tokenizer, max_length=1 << 20)
    case = Case([{"role": "user", "content": "Ping?"}, {"role": "assistant", "content": "A pong"}])
    whole = by_temper(encoder, case)
    assert isinstance(whole, Learnt)
    first = whole.mask.index(True)
    less = Learnt(whole.ids, [*whole.mask[: first + 1], *[False] * (len(whole.ids) - first - 1)])
    more = Learnt(whole.ids, [False, *[True] * (len(whole.ids) - 1)])
    assert reasons_of(tokenizer, whole, less) == reasons_of(tokenizer, whole, more) == []
    other = by_temper(encoder, Case([case.messages[0], {**case.messages[1], "content": "B"}]))
    assert isinstance(other, Learnt)
    assert reasons_of(tokenizer, whole, other) == []


@needs_templates
@pytest.mark.parametrize("family", ["qwen3", "llama3_1", "deepseekv3", "glm4moe", "gptoss"])
def test_arguments_as_json_text_are_learnt_as_objects_are(family: str) -> None:
    (case,) = copy.deepcopy([c for c in EVERY_KIND if c.tools and len(c.messages) == 4])
    case.messages[1]["content"] = ""  # GPT-OSS takes no null
    text = copy.deepcopy(case)
    for call in (call for m in text.messages for call in m.get("tool_calls", ())):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    assert text != case
    encoder = ConversationEncoder(tokenizer_for(model_template(family)), max_length=1 << 20)
    learnt = by_temper(encoder, case)
    assert isinstance(learnt, Learnt), learnt
    assert by_temper(encoder, text) == learnt


@needs_templates
def test_a_template_that_joins_arguments_is_given_text() -> None:
    own = TemplateFormat(tokenizer_for(model_template("deepseekv3")))
    assert own.takes_json_text
    assert not TemplateFormat(tokenizer_for(model_template("qwen3"))).takes_json_text
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": "é"}}}
    turns = (Turn("user", "?"), Turn("assistant", "", json.dumps({"tool_calls": [call]})))
    assert '{"a": "é"}' in own.write_whole(Conversation(turns)).text


@needs_templates
@pytest.mark.parametrize("family", ["qwen3", "qwen2_5", "llama3", "deepseek_r1_distill", "gptoss"])
def test_the_last_answer_alone_stands_after_the_prompt_in_use(family: str) -> None:
    """Also where the model's own template writes earlier answers otherwise: TRL's is not needed."""
    tokenizer = tokenizer_for(model_template(family))
    encoder = ConversationEncoder(tokenizer, max_length=500, train_on="last_answer")
    for case in (case for case in EVERY_KIND if not case.tools and not case.options):
        found = by_temper(encoder, case)
        if isinstance(found, str):
            continue  # this template writes no such conversation
        last = max(n for n, m in enumerate(case.messages) if m["role"] == "assistant")
        assert not any(found.mask[: found.mask.index(True)])
        assert len(learnt_texts(tokenizer, found)) == 1
        if encoder.template is encoder.own_template:
            prompt = tokenizer.apply_chat_template(
                case.messages[:last],
                add_generation_prompt=True,
                strftime_now=TEMPLATE_DATE.strftime,
            )["input_ids"]
            assert found.ids[: len(prompt)] == prompt
            assert found.mask.index(True) == len(prompt)
    assert encoder.template is not None
    assert bool(encoder.template.origin) == (family == "deepseek_r1_distill")


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
def test_300_conversations(family: str, tmp_path: Path) -> None:
    many = cases(312, seed=11)
    found = compare(family, TEMPLATES[family], many)
    with fixed_date():
        compare_with_trainer(family, TEMPLATES[family], found, tmp_path)
    assert found.different == []
    assert found.counts["same in the trainer"] == found.counts["same"] > 150


@slow
@pytest.mark.parametrize("family", FAMILIES)
def test_300_conversations_in_what_models_have_themselves(family: str) -> None:
    check_own(family, cases(312, seed=11))


@needs_templates
@slow
def test_trl_trains_a_family_with_the_file_of_its_name() -> None:
    from trl.chat_template_utils import get_training_chat_template

    for family in FAMILIES:
        trained = get_training_chat_template(tokenizer_for(model_template(family)))
        assert trained == TEMPLATES.get(family), family


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
