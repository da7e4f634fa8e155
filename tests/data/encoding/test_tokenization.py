"""Which tokens carry loss, token by token, with real tokenizers with and without chat templates."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken

from infrastructure.data.encoding import tokenization as module
from infrastructure.data.encoding.tokenization import (
    ConversationEncoder,
    Encoded,
    answer_end_ids,
    begins_with,
    ends_of_template,
    truncate,
)
from infrastructure.data.readers import rows as reasons
from infrastructure.data.readers.rows import BadRow, Conversation, Turn
from tests.data.builders import (
    CHATML,
    MARKED,
    byte_level_tokenizer,
    metaspace_tokenizer,
    slow_tokenizer,
)

TOKENIZERS = [byte_level_tokenizer, metaspace_tokenizer, slow_tokenizer]
TEMPLATES = [CHATML, MARKED]


def talk(*turns: tuple[str, str]) -> Conversation:
    return Conversation(tuple(Turn(*turn) for turn in turns), "", "a.jsonl", 3)


ONE = talk(("user", "What is the sum?"), ("assistant", "The sum is 42."))
TWO = talk(
    ("system", "Be brief."),
    ("user", "How many apples?"),
    ("assistant", "3 apples."),
    ("user", "And you?"),
    ("assistant", "Ich heiße Jörg."),
)


def encode(tokenizer: Any, conversation: Conversation, **settings: Any) -> Encoded:
    encoder = ConversationEncoder(tokenizer, **{"max_length": 500, **settings})
    (result,) = encoder.encode([conversation])
    assert isinstance(result, Encoded), result
    return result


def refusal(tokenizer: Any, conversation: Conversation, **settings: Any) -> BadRow:
    encoder = ConversationEncoder(tokenizer, **{"max_length": 500, **settings})
    (result,) = encoder.encode([conversation])
    assert isinstance(result, BadRow), result
    return result


def learnt_texts(tokenizer: Any, encoded: Encoded) -> list[str]:
    """The runs of learnt tokens as text."""
    example, texts, previous = encoded.example, [], -2
    for index in np.flatnonzero(example.supervised):
        texts += [[]] if index != previous + 1 else []
        texts[-1].append(int(example.input_ids[index]))
        previous = index
    return [tokenizer.decode(ids).strip() for ids in texts]


def test_token_by_token_with_a_chat_template() -> None:
    tokenizer = byte_level_tokenizer(CHATML)
    example = encode(tokenizer, ONE).example
    tokens = tokenizer.convert_ids_to_tokens(example.input_ids.tolist())
    learnt = example.supervised.tolist()
    start = tokens.index("<|im_start|>", 1) + len(tokenizer.tokenize("assistant\n")) + 1
    assert tokens[0] == "<|im_start|>"
    assert tokens[-2:] == ["<|im_end|>", "Ċ"]
    assert learnt == [False] * start + [True] * (len(tokens) - start - 1) + [False]
    assert tokens[start:-1] == [*tokenizer.tokenize("The sum is 42."), "<|im_end|>"]


def test_token_by_token_without_a_template() -> None:
    tokenizer = byte_level_tokenizer()
    example = encode(tokenizer, ONE).example
    prompt = tokenizer("What is the sum?\n")["input_ids"]
    answer = [*tokenizer("The sum is 42.")["input_ids"], tokenizer.eos_token_id]
    assert example.input_ids.tolist() == prompt + answer
    assert example.supervised.tolist() == [False] * len(prompt) + [True] * len(answer)
    assert example.input_ids.dtype == np.int32
    assert example.supervised.dtype == np.bool_


@pytest.mark.parametrize("build", TOKENIZERS)
@pytest.mark.parametrize("template", [None, *TEMPLATES])
@pytest.mark.parametrize("conversation", [ONE, TWO], ids=["one", "two"])
def test_prompts_are_tokenised_as_at_generation(
    build: Any, template: str | None, conversation: Conversation
) -> None:
    tokenizer = build(template)
    encoder = ConversationEncoder(tokenizer, max_length=500)
    example = encode(tokenizer, conversation).example
    for index, turn in enumerate(conversation.turns):
        if turn.role == "assistant":
            prompt = encoder.prompt_ids(conversation.turns[:index])
            assert example.input_ids[: len(prompt)].tolist() == prompt
            assert not example.supervised[len(prompt) - 1]
            assert example.supervised[len(prompt)]


def test_a_prompt_for_people_has_roles_and_no_marks_of_a_template() -> None:
    system, question = Turn("system", "You are brief."), Turn("user", "Reverse abc")
    encoder = ConversationEncoder(byte_level_tokenizer(), max_length=9)
    assert encoder.prompt_text([question]) == "Reverse abc"
    assert encoder.prompt_text([system, question]) == ("system: You are brief.\nuser: Reverse abc")


def test_the_prompt_alone_decides_about_its_last_token() -> None:
    """Two line breaks are one token at the end of a prompt and two before an answer."""
    template = CHATML.replace("'] }}\n{{", "'] }}\n\n{{").replace(
        "assistant\n{%", "assistant\n\n{%"
    )
    tokenizer = byte_level_tokenizer(template)
    whole = tokenizer.apply_chat_template(ONE.messages())["input_ids"]
    prompt = tokenizer.apply_chat_template(ONE.messages()[:1], add_generation_prompt=True)
    ids = prompt["input_ids"]
    assert whole[: len(ids)] != ids  # the trap is there
    example = encode(tokenizer, ONE).example
    assert example.input_ids[: len(ids)].tolist() == ids
    assert learnt_texts(tokenizer, encode(tokenizer, ONE)) == ["The sum is 42.<|im_end|>"]


def test_tokens_that_reach_across_a_boundary_are_split() -> None:
    template = (
        "{{ messages[0].content }} ap{% if messages[1:] %}{{ messages[1].content }}{% endif %}"
    )
    tokenizer = metaspace_tokenizer(template)
    conversation = talk(("user", "Anna has"), ("assistant", "ples."))
    encoder = ConversationEncoder(tokenizer, max_length=99)
    prompt = encoder.prompt_ids(conversation.turns[:1])
    whole = tokenizer("Anna has apples.", add_special_tokens=False)["input_ids"]
    assert whole[: len(prompt)] != prompt  # the trap is there
    example = encode(tokenizer, conversation).example
    assert example.input_ids[: len(prompt)].tolist() == prompt
    assert tokenizer.decode(example.input_ids) == "Anna has apples.</s>"  # no space comes between
    assert not example.supervised[: len(prompt)].any()
    assert example.supervised[len(prompt) :].all()


@pytest.mark.parametrize(
    "template",
    [
        None,
        "<s>{{ messages[0]['content'] }}\n"
        "{% if messages[1:] %}{{ messages[1]['content'] }}{{ eos_token }}{% endif %}",
    ],
)
def test_bos_stands_there_once(template: str | None) -> None:
    tokenizer = metaspace_tokenizer(template)
    ids = encode(tokenizer, ONE).example.input_ids.tolist()
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids.count(tokenizer.eos_token_id) == 1


def test_a_template_that_writes_no_end_gets_eos() -> None:
    bare = CHATML.replace("<|im_end|>", "")
    marked = MARKED.replace("<|im_end|>", "")
    for template in (bare, marked):
        tokenizer = byte_level_tokenizer(template)
        example = encode(tokenizer, ONE).example
        assert example.input_ids[-1] == tokenizer.eos_token_id
        assert example.supervised[-1]
    assert learnt_texts(tokenizer, encode(tokenizer, ONE)) == ["The sum is 42.<|endoftext|>"]


def test_an_end_that_is_no_special_token_is_an_end() -> None:
    tokenizer = byte_level_tokenizer(
        MARKED.replace("{% endgeneration %}", "<eot>{% endgeneration %}")
    )
    tokenizer.add_tokens(["<eot>"])
    assert learnt_texts(tokenizer, encode(tokenizer, ONE)) == ["The sum is 42.<eot>"]
    bare = byte_level_tokenizer(MARKED.replace("<|im_end|>", ""))
    assert learnt_texts(bare, encode(bare, ONE)) == ["The sum is 42.<|endoftext|>"]


def test_reasoning_is_written_in_a_form_that_the_template_does_not_refuse() -> None:
    template = CHATML.replace(
        "{% for m in messages %}",
        "{% for m in messages %}{% if m.reasoning %}{{ raise_exception('no') }}{% endif %}",
    ).replace("{{ m['content'] }}", "{{ m.thinking }} {{ m['content'].split('</think>')[-1] }}")
    thought = talk(("user", "What is the sum?"), ("assistant", "<think>so</think>42."))
    tokenizer = byte_level_tokenizer(template)
    encoded = encode(tokenizer, thought)
    assert encoded.is_rewritten
    assert learnt_texts(tokenizer, encoded) == ["so 42.<|im_end|>"]


@pytest.mark.parametrize("build", TOKENIZERS)
def test_plain_text_is_learnt_as_a_whole(build: Any) -> None:
    tokenizer = build(CHATML)  # a template does not matter to documents
    example = encode(tokenizer, talk(("text", "The capital is Paris."))).example
    assert example.input_ids[-1] == tokenizer.eos_token_id
    assert example.supervised.tolist() == [False] + [True] * (len(example.input_ids) - 1)


def test_all_tokens_but_the_first_can_be_learnt() -> None:
    for template in (None, CHATML, MARKED):
        example = encode(byte_level_tokenizer(template), TWO, train_on="all").example
        assert example.supervised.tolist() == [False] + [True] * (len(example.input_ids) - 1)


def test_long_rows_are_refused_or_cut_as_configured() -> None:
    tokenizer = byte_level_tokenizer(CHATML)
    length = len(encode(tokenizer, TWO).example.input_ids)
    assert not encode(tokenizer, TWO, max_length=length).is_truncated
    bad = refusal(tokenizer, TWO, max_length=length - 1)
    assert (bad.place, bad.reason) == ("a.jsonl:3", reasons.OVER_LONG)
    assert f"data.example_too_long(num_tokens={length}, max_length={length - 1})" == bad.detail
    cut = encode(tokenizer, TWO, max_length=length - 1, over_length="truncate")
    assert cut.is_truncated
    assert len(cut.example.input_ids) == length - 1
    assert learnt_texts(tokenizer, cut)[-1] == "Ich heiße Jörg.<|im_end|>"


@pytest.mark.parametrize("build", TOKENIZERS)
@pytest.mark.parametrize("template", [None, CHATML, MARKED])
def test_a_cut_row_is_the_beginning_of_the_whole_one(build: Any, template: str | None) -> None:
    """Tokens and mask of each length are those of the whole row, as TRL's `keep_start` has them; a
    row of which nothing is left to learn is refused."""
    tokenizer = build(template)
    whole = encode(tokenizer, TWO).example
    first_learnt = int(np.flatnonzero(whole.supervised)[0])
    for length in range(2, len(whole.input_ids)):
        given = {"max_length": length, "over_length": "keep_start"}
        if length <= first_learnt:
            bad = refusal(tokenizer, TWO, **given)
            about = f"num_tokens={len(whole.input_ids)}, max_length={length}"
            assert bad.reason == reasons.OVER_LONG
            assert bad.detail == f"data.no_trained_token_in_limit({about})"
            continue
        cut = encode(tokenizer, TWO, **given)
        assert cut.is_truncated
        assert cut.example.input_ids.tolist() == whole.input_ids[:length].tolist()
        assert cut.example.supervised.tolist() == whole.supervised[:length].tolist()
    assert not encode(
        tokenizer, TWO, max_length=len(whole.input_ids), over_length="keep_start"
    ).is_truncated


def mask(text: str) -> Any:
    return np.array([character == "1" for character in text])


def test_truncation_keeps_the_last_answer() -> None:
    tokens = np.arange(100, 110, dtype=np.int32)
    ids, learnt = truncate(tokens, mask("0000110111"), 6)
    assert ids.tolist() == [104, 105, 106, 107, 108, 109]
    assert learnt.tolist() == mask("010111").tolist()
    ids, learnt = truncate(tokens, mask("0000001111"), 6, bos_id=100)
    assert ids.tolist() == [100, 105, 106, 107, 108, 109]
    ids, learnt = truncate(tokens, mask("0001111111"), 4)  # the answer loses its end
    assert (ids.tolist(), learnt.tolist()) == ([102, 103, 104, 105], mask("0111").tolist())
    ids, learnt = truncate(tokens, mask("0111111111"), 4)  # a document keeps its beginning
    assert (ids.tolist(), learnt.tolist()) == ([100, 101, 102, 103], mask("0111").tolist())


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    forgetful = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if loop.last and "
        "m['role'] == 'assistant' %}<think>{% endif %}{{ m['content'] }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = byte_level_tokenizer(forgetful)
    bad = refusal(tokenizer, TWO)
    assert bad.reason == reasons.CHAT_TEMPLATE
    assert bad.detail == "data.template_rewrites_earlier(what=data.earlier_messages())"
    assert learnt_texts(tokenizer, encode(tokenizer, ONE)) == ["<think>The sum is 42.<|im_end|>"]
    thinking = CHATML.replace("assistant\n{% endif", "assistant\n<think>{% endif")
    bad = refusal(byte_level_tokenizer(thinking), ONE)
    assert bad.detail == "data.template_rewrites_earlier(what=data.text_before_answer())"


def test_a_template_that_refuses_a_row_gives_the_reason() -> None:
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    strict = refuses + CHATML
    tokenizer = byte_level_tokenizer(strict)
    assert "data.template_refuses(error=no system)" in refusal(tokenizer, TWO).detail
    assert encode(tokenizer, ONE)
    starts_with_answer = talk(("assistant", "Hello"))
    refused = refusal(tokenizer, starts_with_answer).detail
    assert refused == "data.conversation_begins_with_answer()"


def test_a_greeting_is_learnt_where_its_header_is_found() -> None:
    tokenizer = byte_level_tokenizer(CHATML)
    greeted = talk(("assistant", "Hello"), *((t.role, t.text) for t in ONE.turns))
    assert learnt_texts(tokenizer, encode(tokenizer, greeted)) == [
        *("Hello<|im_end|>", "The sum is 42.<|im_end|>")
    ]
    headless = "{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}"
    refused = refusal(byte_level_tokenizer(headless), greeted).detail
    assert refused == "data.first_answer_not_located()"


def test_a_template_with_a_date_writes_the_same_every_day() -> None:
    tokenizer = byte_level_tokenizer("{{ strftime_now('%d %b %Y') }}\n" + CHATML)
    assert tokenizer.decode(encode(tokenizer, ONE).example.input_ids).startswith("26 Jul 2024\n")


def test_a_tokenizer_without_eos_is_refused() -> None:
    tokenizer = byte_level_tokenizer(eos_token=None)
    with pytest.raises(ValueError, match=r"data\.tokenizer_without_eos"):
        ConversationEncoder(tokenizer, max_length=10)
    tokenizer.chat_template = CHATML  # the template has an end of its own
    assert learnt_texts(tokenizer, encode(tokenizer, ONE)) == ["The sum is 42.<|im_end|>"]


def test_a_marked_template_that_marks_nothing_leaves_no_token() -> None:
    tokenizer = byte_level_tokenizer("{% generation %}{% endgeneration %}" + CHATML)
    assert refusal(tokenizer, ONE).reason == reasons.NOT_SUPERVISED


def random_conversation(rng: np.random.RandomState) -> Conversation:
    alphabet = list("ab 12.\n\nßä你é'#-  ")
    turns = [("system", "Be.")] if rng.randint(2) else []
    for _ in range(rng.randint(1, 4)):
        for role in ("user", "assistant"):
            text = "".join(rng.choice(alphabet, size=rng.randint(1, 12)))
            turns.append((role, text if text.strip() else "x"))
    return talk(*turns)


@pytest.mark.parametrize("build", TOKENIZERS)
@pytest.mark.parametrize("template", [None, *TEMPLATES])
def test_random_conversations(build: Any, template: str | None) -> None:
    """What is learnt is what was answered, and prompts are those of generation.

    Where a template marks its answers, a line break before an answer that begins with one may be
    one token with it: so TRL trains.
    """
    rng = np.random.RandomState(7)
    tokenizer = build(template)
    encoder = ConversationEncoder(tokenizer, max_length=10_000)
    conversations = [random_conversation(rng) for _ in range(40)]
    for conversation, result in zip(conversations, encoder.encode(conversations), strict=True):
        assert isinstance(result, Encoded)
        example = result.example
        assert not example.supervised[0]
        assert len(example.input_ids) == len(example.supervised)
        runs = np.flatnonzero(np.diff(np.concatenate([[0], example.supervised, [0]])))
        answers = _answers(conversation)
        prompt = encoder.prompt_ids(conversation.turns[: answers[0]])
        given = example.input_ids[: runs[0]].tolist()
        if template is MARKED and tokenizer.is_fast:  # as transformers: one token may hold both
            prompt = prompt[: len(given)]
            assert tokenizer.decode(example.input_ids).startswith(tokenizer.decode(prompt))
        assert given == prompt
        for start, end, index in zip(runs[::2], runs[1::2], answers, strict=True):
            assert int(example.input_ids[end - 1]) in encoder.special_tokens
            text = tokenizer.decode(example.input_ids[start:end], skip_special_tokens=True)
            assert text.split() == _readable(tokenizer, conversation.turns[index].text)


def _answers(conversation: Conversation) -> list[int]:
    return [i for i, turn in enumerate(conversation.turns) if turn.role == "assistant"]


def _readable(tokenizer: Any, text: str) -> list[str]:
    """A text as the tokenizer gives it back (an unknown letter is lost)."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return str(tokenizer.decode(ids, skip_special_tokens=True)).split()


@pytest.mark.parametrize(
    ("template", "eos", "expected"),
    [
        (CHATML, "<|endoftext|>", ["<|endoftext|>", "<|im_end|>"]),
        (CHATML, "<|im_end|>", ["<|im_end|>"]),
        (None, "<|endoftext|>", ["<|endoftext|>"]),
    ],
)
def test_an_answer_ends_where_the_template_ends_it(
    template: str | None, eos: str, expected: list[str]
) -> None:
    tokenizer = byte_level_tokenizer(template, eos_token=eos)
    assert {*tokenizer.convert_ids_to_tokens(answer_end_ids(tokenizer))} == {*expected}


def test_the_ends_of_answers_are_in_order() -> None:
    tokenizer = byte_level_tokenizer(CHATML)
    tokenizer.add_tokens([f"<{number}>" for number in range(8)])
    tokenizer.eos_token = f"<{-len(byte_level_tokenizer()) % 8}>"  # first in a set
    assert tokenizer.eos_token_id % 8 == 0
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert answer_end_ids(tokenizer) == [end, tokenizer.eos_token_id]


@pytest.mark.parametrize("train_on", ["answers", "last_answer", "all"])
def test_another_template_is_needed_only_to_train_on_earlier_answers(train_on: str) -> None:
    source = module.shipped_templates()["qwen3"].read_text("utf-8")
    templates: Any = {"default": source, "tool_use": source}
    encoder = ConversationEncoder(byte_level_tokenizer(templates), max_length=99, train_on=train_on)
    for found in (encoder.template, encoder.tool_template):
        assert found is not None
        assert bool(found.origin) == (train_on != "last_answer")
    assert encoder.write(TWO).is_marked == (train_on == "answers")


class Texts:
    """Stands for a tokenizer: the text of each number."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.texts[number] for number in ids)


@pytest.mark.parametrize(
    ("ids", "prompt", "begins"),
    [
        ([1, 2, 3], [1, 2], True),
        ([1, 2], [1, 2], True),
        ([1, 2], [], True),
        ([1], [1, 2], False),
        ([1, 3, 2], [1, 2], False),
        # one text in other tokens: 4 is "abcd", 5 is "ab"
        ([0, 4, 9], [0, 1, 2, 3, 8], True),
        ([0, 4, 9], [9, 1, 2, 3, 8], False),
        ([4, 9], [0, 4], True),
        ([6, 9], [1, 2, 3, 8, 7], False),  # five of them
        ([0, 1, 2, 9], [0, 5], True),
        ([0, 1, 0, 2], [0, 5], False),  # as many more as one
        ([0, 5, 9], [0, 1, 3], False),
    ],
)
def test_a_row_begins_with_its_prompt_in_tokens_or_in_the_last_texts(
    ids: list[int], prompt: list[int], begins: bool
) -> None:
    tokenizer: Any = Texts("", "a", "b", "c", "abcd", "ab", "abcde", "e", "d", "!")
    assert begins_with(tokenizer, ids, prompt) is begins


def test_the_advice_names_two_templates_that_keep_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those whose tags are tokens; of what they write nothing is uncertain."""
    whole = CHATML.replace("{{ m['content'] }}", "{{ m.reasoning }}{{ m['content'] }}")
    strict = "{% if messages[0].content == 'Which?' %}{{ raise_exception('no') }}{% endif %}"
    sources = {
        "a-drops": CHATML,
        "b-tags": whole.replace("<|im_end|>", "<end>"),
        "c-no-tags": "{% for m in messages %}{{ m.reasoning }}{{ m['content'] }}{% endfor %}",
        "d-uncertain": whole.replace("m['content'] }}", "m['content'] | upper }}"),
        "e-refuses": whole + strict,
        **dict.fromkeys(("f", "g", "h"), whole),
    }
    for name, source in sources.items():
        (tmp_path / name).write_text(source)
    paths = {name: tmp_path / name for name in sources}
    monkeypatch.setattr(module, "shipped_templates", lambda: paths)
    thought = Turn("assistant", "Yes.", json.dumps({"reasoning": "so"}))
    row = Conversation((Turn("user", "Which?"), thought))
    bad = refusal(byte_level_tokenizer(CHATML), row)
    assert bad.reason == reasons.LEFT_OUT
    assert bad.detail.endswith("writer=data.chat_template())")
    named = "data.shipped_template_examples(names=f or g)"
    assert bad.advice == f"data.use_complete_template(examples={named})"
    monkeypatch.setattr(module, "shipped_templates", dict)
    assert refusal(byte_level_tokenizer(CHATML), row).advice.endswith("(examples=)")
    plain = refusal(byte_level_tokenizer(), row)
    assert plain.detail.endswith("writer=data.plain_format())")


@pytest.mark.parametrize("over_length", ["keep_start", "truncate"])
def test_the_token_that_ends_answers_is_found_where_the_last_one_is_cut(over_length: str) -> None:
    tokenizer = byte_level_tokenizer(CHATML)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    whole = encode(tokenizer, TWO)
    assert whole.end_token == end
    learnt = np.flatnonzero(whole.example.supervised)
    last = int(learnt[-1])
    two_left = encode(tokenizer, TWO, max_length=last - 1, over_length="keep_start")
    assert two_left.end_token == end  # of the answer before
    first = int(learnt[0])
    cut = encode(tokenizer, TWO, max_length=first + 1, over_length="keep_start")
    assert cut.end_token == cut.example.input_ids[-1] != end
    long = talk(("user", "Q"), ("assistant", "word " * 99))
    cut = encode(tokenizer, long, max_length=20, over_length=over_length)
    assert cut.end_token != end
    assert encode(byte_level_tokenizer(), TWO).end_token == tokenizer.eos_token_id


def test_the_tokens_of_a_text_are_counted_without_those_of_the_template() -> None:
    encoder = ConversationEncoder(metaspace_tokenizer(), max_length=9)
    assert encoder.num_tokens("a a") == len(metaspace_tokenizer().tokenize("a a"))


def test_ends_are_those_of_a_template() -> None:
    tokenizer = byte_level_tokenizer(CHATML)
    both = answer_end_ids(tokenizer)
    assert ends_of_template(tokenizer) == both
    assert ends_of_template(SimpleNamespace(tokenizer=tokenizer)) == both  # a processor
    assert ends_of_template(None) == ends_of_template(byte_level_tokenizer()) == []
    assert ends_of_template(byte_level_tokenizer(CHATML, eos_token=None)) == []
    ends_in_text = CHATML.replace("<|im_end|>", " end")
    assert answer_end_ids(byte_level_tokenizer(ends_in_text)) == [tokenizer.eos_token_id]
    refuses = byte_level_tokenizer("{{ raise_exception('no') }}")
    assert answer_end_ids(refuses) == [tokenizer.eos_token_id]
    marked = MARKED.replace("{% endgeneration %}", "<eot>{% endgeneration %}")
    plain = byte_level_tokenizer(marked.replace("<|im_end|>", ""))
    plain.add_tokens(["<eot>"])  # a token that is not special
    assert answer_end_ids(plain) == [tokenizer.eos_token_id]


def test_text_models_refuse_pictures_with_the_reason() -> None:
    shown = json.dumps({"content": [{"type": "image"}, {"type": "text", "text": "Q"}]})
    row = Conversation((Turn("user", "Q", shown), Turn("assistant", "A")), pictures=(b"x",))
    bad = refusal(byte_level_tokenizer(CHATML.replace("m['content']", "m.content | string")), row)
    assert (bad.reason, bad.detail) == (reasons.PICTURE, "data.model_accepts_text_only()")


@pytest.mark.parametrize("side", ["lstrip", "rstrip"])
def test_a_token_that_takes_the_space_beside_it_is_tokenised_in_the_whole_text(side: str) -> None:
    tokenizer = byte_level_tokenizer(CHATML)
    options: Any = {side: True}
    greedy = AddedToken("<|im_end|>", special=True, **options)
    tokenizer.add_special_tokens({"additional_special_tokens": [greedy]})
    whole = tokenizer.apply_chat_template(TWO.messages())["input_ids"]
    assert encode(tokenizer, TWO).example.input_ids.tolist() == whole
    prompt = tokenizer.apply_chat_template(TWO.messages()[:4], add_generation_prompt=True)
    assert (
        encode(tokenizer, TWO).example.input_ids[: len(prompt["input_ids"])].tolist()
        == (prompt["input_ids"])
    )


def test_rows_come_back_in_their_order_whatever_becomes_of_them() -> None:
    encoder = ConversationEncoder(byte_level_tokenizer(CHATML), max_length=40)
    rows = [ONE, talk(("assistant", "A")), TWO, talk(("text", "T")), ONE]
    found = encoder.encode(rows)
    kinds = [one.reason if isinstance(one, BadRow) else "" for one in found]
    assert kinds == ["", reasons.CHAT_TEMPLATE, reasons.OVER_LONG, "", ""]
    bad = found[1]
    assert isinstance(bad, BadRow)
    assert bad.advice == "data.put_whole_text_in_column()"
    assert (bad.place, bad.excerpt) == ("a.jsonl:3", "A")
    assert encoder.encode([]) == []


NO_SYSTEM = CHATML.replace("messages %}", "messages if m.role != 'system' %}")


def test_what_a_template_leaves_out_of_a_prompt_is_marked() -> None:
    encoder = ConversationEncoder(byte_level_tokenizer(NO_SYSTEM), max_length=99)
    thought = Turn("assistant", "Yes.", json.dumps({"reasoning": "so"}))
    turns = [Turn("system", "Be."), Turn("user", "Q"), thought, Turn("user", "R")]
    account = encoder.prompt_account(turns)
    assert [(one.message, one.text) for one in account.missing] == [(1, "Be."), (3, "so")]
    left_out = "data.message_left_out(role=system, text=Be.)"
    assert encoder.prompt_text(turns) == f"{left_out}\nuser: Q\nassistant: Yes.\nuser: R"
    found = encode(byte_level_tokenizer(NO_SYSTEM), TWO).account
    assert [(one.message, one.text) for one in found.missing] == [(1, "Be brief.")]
    assert encode(byte_level_tokenizer(CHATML), TWO).account.missing == ()


def test_letters_without_a_token_refuse_an_answer_and_are_noted_in_a_question() -> None:
    tokenizer = metaspace_tokenizer()
    lost = refusal(tokenizer, talk(("user", "Q"), ("assistant", "It is Ω.")))
    assert lost.reason == reasons.NOT_IN_TOKENS
    assert lost.detail.startswith("data.text_decoded_differently(text=It is Ω.")
    noted = encode(tokenizer, talk(("user", "Is it Ω?"), ("assistant", "No.")))
    assert noted.survival.kind == ""
    shown = tokenizer.decode(tokenizer("Is it Ω?", add_special_tokens=False)["input_ids"])
    differently = f"data.text_decoded_differently(text=Is it Ω?, decoded={shown})"
    assert noted.survival.unread == differently
    assert encode(tokenizer, ONE).survival.unread == ""
    rows = [talk(("user", "Q"), ("assistant", answer)) for answer in ("Ω", "A")]
    first, second = ConversationEncoder(tokenizer, max_length=99).encode(rows)
    assert (type(first), type(second)) == (BadRow, Encoded)


@pytest.mark.parametrize("train_on", ["answers", "last_answer", "all"])
def test_rows_with_tools_have_the_template_for_tools(train_on: str) -> None:
    templates: Any = {"default": CHATML, "tool_use": "{{ 'T: ' if tools }}" + CHATML}
    tokenizer = byte_level_tokenizer(templates)
    encoder = ConversationEncoder(tokenizer, max_length=99, train_on=train_on)
    tools = json.dumps({"tools": [{"name": "f"}]})
    for inputs, begins in ((tools, "T: <|im_start|>"), ('{"tools": []}', "<|"), ("", "<|")):
        (found,) = encoder.encode([Conversation(ONE.turns, inputs=inputs)])
        assert isinstance(found, Encoded)
        assert tokenizer.decode(found.example.input_ids).startswith(begins)
        assert tokenizer.decode(encoder.prompt_ids(ONE.turns[:1], inputs)).startswith(begins)
    assert encoder.template_sources == [*templates.values()]
    assert ConversationEncoder(byte_level_tokenizer(), max_length=9).template_sources == []


def test_a_task_stays_with_its_row() -> None:
    row = Conversation(ONE.turns, task="sum")
    assert encode(byte_level_tokenizer(CHATML), row).example.task == "sum"


@pytest.mark.parametrize("build", TOKENIZERS)
@pytest.mark.parametrize("template", [None, CHATML, MARKED])
def test_what_a_row_excludes_or_gives_is_not_learnt(build: Any, template: str | None) -> None:
    tokenizer = build(template)
    texts = learnt_texts(tokenizer, encode(tokenizer, TWO))
    first, last = texts
    excluded = list(TWO.turns)
    excluded[2] = replace(excluded[2], is_learnt=False)
    for row in (replace(TWO, turns=tuple(excluded)), replace(TWO, num_given=4)):
        assert learnt_texts(tokenizer, encode(tokenizer, row)) == [last]
    assert learnt_texts(tokenizer, encode(tokenizer, replace(TWO, num_given=2))) == texts
    row = replace(TWO, turns=tuple(excluded))
    parts = learnt_texts(tokenizer, encode(tokenizer, row, train_on="all"))
    whole = tokenizer.decode(encode(tokenizer, TWO).example.input_ids[1:]).strip()
    assert len(parts) == 2
    assert whole.startswith(parts[0])
    assert whole.endswith(parts[1])
    assert whole[len(parts[0]) : -len(parts[1])].strip() == first


@pytest.mark.parametrize("build", TOKENIZERS)
def test_only_the_last_answer_is_learnt_if_that_is_set(build: Any) -> None:
    for template in (None, CHATML, MARKED):
        tokenizer = build(template)
        [text] = learnt_texts(tokenizer, encode(tokenizer, TWO, train_on="last_answer"))
        assert text.startswith("Ich hei")
        document = talk(("text", "The capital is Paris."))
        last, whole = (
            encode(tokenizer, document, train_on=one).example for one in ("last_answer", "answers")
        )
        assert last.supervised.tolist() == whole.supervised.tolist()
