"""A chat template is analysed by what it renders of a few known conversations."""

import importlib.metadata
import json
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from infrastructure.data.encoding.chat_format import (
    FormatError,
    PlainFormat,
    TemplateFormat,
    _any_of,
    _changed,
    end_of_text,
    leading_ids,
    marks_without_token,
    shipped_templates,
    spelled_tags,
    start_of_text,
    tags_of,
    training_format,
)
from infrastructure.data.readers.rows import Conversation, Turn
from tests.data.builders import (
    CHATML,
    MARKED,
    byte_level_tokenizer,
    metaspace_tokenizer,
    slow_tokenizer,
)

QUESTION, ANSWER = Turn("user", "Q"), Turn("assistant", "A")
CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": "é"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def form(template: str, **special: Any) -> TemplateFormat:
    return TemplateFormat(byte_level_tokenizer(template, **special))


@pytest.mark.parametrize(
    ("before", "preamble"),
    [
        ("Be kind to people.", "Be kind to people."),
        ("Be kind now.", ""),  # as few words as a name of a role has
        ("<|im_start|>system\nYou  are\nvery helpful.<|im_end|>", "system You are very helpful."),
        ("one two<|im_end|>three four five six<|im_end|>", "three four five six"),
        ("{% if messages[1:] %}{{ raise_exception('no') }}{% endif %}a b c d", "a b c d"),
        ("{{ raise_exception('no') }}a b c d", ""),
    ],
)
def test_the_preamble_is_a_sentence_before_the_question(before: str, preamble: str) -> None:
    assert form(before + CHATML).preamble == preamble


def test_the_longest_of_several_texts_is_found() -> None:
    pattern = _any_of(["<a>", "", "<a>b", "<a"])
    assert [match.group() for match in pattern.finditer("<a>b <a> <a")] == ["<a>b", "<a>", "<a"]
    assert _any_of([""]).search("anything") is None


def test_an_end_token_that_begins_like_another_is_found_whole() -> None:
    template = MARKED.replace("<|im_end|>", "<|im_end|>>")
    tokenizer = byte_level_tokenizer(template)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>>"]})
    assert TemplateFormat(tokenizer).own_end == "<|im_end|>>"


@pytest.mark.parametrize(
    ("template", "own_end", "writes_end"),
    [
        (MARKED, "<|im_end|>", True),
        (MARKED.replace("<|im_end|>", ""), "", False),
        (CHATML, "", True),  # found by comparison
        (MARKED.replace("{% endgeneration %}", "<|im_end|>{% endgeneration %}"), "", True),
        (MARKED.replace("{% endgeneration %}", "<|im_end|>\n{% endgeneration %}"), "", True),
        (MARKED.replace("{{ m['content'] }}", "", 1), "", True),  # marks nothing
        ("{% if messages[1:] %}{{ raise_exception('no') }}{% endif %}" + MARKED, "", True),
    ],
)
def test_whether_an_end_is_written_and_marked(
    template: str, own_end: str, writes_end: bool
) -> None:
    found = form(template)
    assert (found.own_end, found.writes_end) == (own_end, writes_end)


def test_messages_in_parts_are_given_where_a_template_takes_no_other() -> None:
    in_parts = CHATML.replace("{{ m['content'] }}", "{{ m['content'][0].text }}")
    assert form(in_parts).takes_parts
    assert form(in_parts).text_of(Conversation((QUESTION, ANSWER))).count("Q") == 1
    either = CHATML.replace(
        "{{ m['content'] }}",
        "{{ m['content'] if m['content'] is string else m['content'][0].text }}",
    )
    for other in (CHATML, either, "{{ raise_exception('no') }}"):
        assert not form(other).takes_parts
    shown = json.dumps({"content": [{"type": "image"}, {"type": "text", "text": "Q"}]})
    assert form(in_parts).message(Turn("user", "Q", shown))["content"][0] == {"type": "image"}


def calls_in(written: str) -> str:
    """A template that writes the tool calls of messages so."""
    return CHATML.replace(
        "{{ m['content'] }}",
        "{{ m['content'] }}{% for c in m.tool_calls or [] %}" + written + "{% endfor %}",
    )


WRAPPED = "{{ c.function.name }} {{ c.function.arguments | tojson }}"
BARE = "{{ c.name }} {{ c.arguments | tojson }}"
TEXT = "{{ c.function.name + ' ' + c.function.arguments }}"


@pytest.mark.parametrize(
    ("written", "takes_json_text", "wraps"),
    [
        (WRAPPED, False, True),
        (BARE, False, False),
        ("{{ c | tojson }}", False, None),
        (TEXT, True, True),
        ("{{ c.name + ' ' + c.arguments }}", True, False),
        ("{{ c.other + '' }}", False, None),
    ],
)
def test_calls_have_the_form_that_a_template_writes(
    written: str, takes_json_text: bool, wraps: bool | None
) -> None:
    found = form(calls_in(written))
    assert (found.takes_json_text, found.wraps_calls) == (takes_json_text, wraps)
    if "other" in written:
        return
    bare: Any = CALL["function"]
    for call in (CALL, bare):
        turn = Turn("assistant", "", json.dumps({"tool_calls": [call]}))
        text = found.text_of(Conversation((QUESTION, turn)))
        assert "f" in text
        assert '{"a": "é"}' in text or '{"a": "\\u00e9"}' in text
        given = found.message(turn)["tool_calls"]
        is_wrapped = call is CALL if wraps is None else wraps
        arguments: Any = {"a": "é"} if not takes_json_text else '{"a": "é"}'
        inner = {"name": "f", "arguments": arguments}
        assert given == [{"type": "function", "function": inner} if is_wrapped else inner]
    without = Turn("assistant", "", json.dumps({"tool_calls": [{"name": "f"}]}))
    [call] = found.message(without)["tool_calls"]
    assert ("arguments" in call.get("function", call)) is takes_json_text


@pytest.mark.parametrize(
    ("written", "wraps"),
    [
        ("{% for t in tools or [] %}{{ t.function.name + '' }}{% endfor %}", True),
        ("{% for t in tools or [] %}{{ t.name + '' }}{% endfor %}", False),
        ("{{ tools | tojson if tools }}", None),
        ("{# tools #}", None),
        ("{% if tools %}{{ raise_exception('no') }}{% endif %}", None),
    ],
)
def test_tools_have_the_form_that_a_template_writes(written: str, wraps: bool | None) -> None:
    found = form(written + CHATML)
    assert found.wraps_tools is wraps
    bare = TOOL["function"]
    expected = {True: [TOOL, TOOL], False: [bare, bare], None: [TOOL, bare]}[wraps]
    assert found.tools([TOOL, bare]) == expected


def test_names_in_comments_and_in_other_names_are_not_read() -> None:
    found = form("{# {{ mood }} tools\n#}{{ moody }}{{ m.x_thinking }}" + CHATML)
    assert [found.reads(name) for name in ("mood", "tools", "thinking", "content", "role")] == [
        *(False, False, False),
        *(True, True),
    ]


def test_a_placeholder_is_written_for_a_picture() -> None:
    parts = (
        "{% for p in m['content'] %}{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}"
    )
    writes = CHATML.replace("{{ m['content'] }}", parts)
    assert form(writes).writes("<image>")
    assert not form(writes).writes("<other>")
    assert not form(CHATML).writes("'type'")  # the list as Python prints it
    assert not form("<image>" + CHATML).writes("<image>")
    lost = writes.replace("else p.text", "else ''")
    assert not form(lost).writes("<image>")
    refuses = "{% if messages[0].content is not string %}{{ raise_exception('no') }}{% endif %}"
    assert not form(refuses + CHATML).writes("<image>")


@pytest.mark.parametrize(
    ("template", "learned"),
    [
        (CHATML, ""),
        (MARKED, ""),
        (
            "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
            "bot: {{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}\n"
            "{% endif %}{% endfor %}{% if add_generation_prompt %}bot: {% endif %}",
            "bot: ",
        ),
    ],
)
def test_what_of_the_generation_prompt_is_marked(template: str, learned: str) -> None:
    assert form(template).learned_of_prompt == learned


def test_the_row_s_own_prompt_ends_as_at_generation() -> None:
    turns = (QUESTION, ANSWER, QUESTION, ANSWER)
    written = form(MARKED).write(Conversation(turns, num_given=3))
    assert written.given == form(MARKED).write_prompt(turns[:3]).text
    assert written.given.endswith("<|im_start|>assistant\n")
    assert written.text.startswith(written.given)
    assert form(MARKED).write(Conversation(turns)).given == ""


def test_options_of_a_row_override_the_template_s_variables() -> None:
    template = "{{ mood }}{{ bos_token }}" + CHATML
    options = {"chat_template_kwargs": {"mood": "calm", "bos_token": "!"}, "mood": "loud"}
    text = form(template, bos_token="<s>").write_prompt([QUESTION], json.dumps(options)).text
    assert text.startswith("loud!")
    assert form(template, bos_token="<s>").write_prompt([QUESTION]).text.startswith("<s>")
    tooled = '{"tools": [], "mood": "x"}'
    assert form(template).write_prompt([QUESTION], tooled).text.startswith("x")


def test_the_plain_format_writes_each_message_on_its_line() -> None:
    plain = PlainFormat(metaspace_tokenizer())
    turns = (Turn("system", "S"), QUESTION, ANSWER, QUESTION, ANSWER)
    written = plain.write(Conversation((*turns, QUESTION)))
    assert written.text == "S\nQ\nA</s>\nQ\nA</s>"
    assert [written.text[start:end] for start, end in written.spans] == ["A</s>", "A</s>"]
    assert written.lead == (metaspace_tokenizer().bos_token_id,)
    assert plain.write_prompt(turns[:4]).text == "S\nQ\nA</s>\nQ\n"
    assert plain.write_prompt(turns[:4]).lead == written.lead
    begins = (Turn("user", "<s>Q"), ANSWER)
    assert plain.write(Conversation(begins)).lead == plain.write_prompt(begins[:1]).lead == ()
    for text, whole in (("T", "T</s>"), ("T</s>", "T</s>"), ("T</s>\n", "T</s>\n</s>")):
        document = plain.write(Conversation((Turn("text", text),)))
        assert (document.text, document.spans) == (whole, ((0, len(whole)),))
        assert document.is_learnt == (True,)
    left_out = Turn("assistant", "A", is_learnt=False)
    assert plain.write(Conversation((QUESTION, left_out, *turns[3:]))).is_learnt == (False, True)
    called = Turn("assistant", "A", json.dumps({"tool_calls": [CALL]}))
    with pytest.raises(FormatError) as refused:
        plain.write(Conversation((QUESTION, called, QUESTION, ANSWER)))
    assert refused.value.sentence == ("data.message_calls_tools(number=2): data.no_chat_template()")


def test_a_template_that_forgets_gets_the_training_template_of_its_family() -> None:
    shipped = shipped_templates()
    assert [*shipped] == sorted(shipped)
    assert not any(name.endswith("_training") for name in shipped)
    tokenizer = byte_level_tokenizer(shipped["qwen3"].read_text("utf-8"))
    own = TemplateFormat(tokenizer)
    assert (own.can_find_answers(last_only=False), own.can_find_answers(last_only=True)) == (
        *(False, True),
    )
    assert training_format(tokenizer, own, last_only=True) is own
    found = training_format(tokenizer, own)
    assert found.origin == f"TRL {importlib.metadata.version('trl')}"
    assert found.marks_answers
    assert own.origin == ""
    for template in (CHATML, MARKED, FORGETFUL):
        own = form(template)
        assert training_format(byte_level_tokenizer(template), own) is own
    refuses = "{% if messages[1:] and messages[1].content == 'Pong 4826' %}{{ raise_exception() }}"
    for template in (FORGETFUL, refuses + "{% endif %}" + FORGETFUL):
        assert not form(template).can_find_answers(last_only=False)


def test_a_date_in_a_template_is_always_the_same() -> None:
    dated = form("{{ strftime_now('%d %b %Y') }}" + CHATML)
    assert dated.writes_date
    assert dated.write_prompt([QUESTION]).text.startswith("26 Jul 2024<|im_start|>")
    assert not form(CHATML).writes_date


FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if loop.last and "
    "m['role'] == 'assistant' %}<think>{% endif %}{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_marks_that_are_no_tokens_are_named_once() -> None:
    template = "<|im_start|>a<|turn|>b<|end|>{{ '<|turn|>' }}<||><| x|>"
    assert marks_without_token(template, byte_level_tokenizer()) == ["<|turn|>", "<|end|>"]


def test_bos_is_what_the_tokenizer_puts_before_a_text() -> None:
    for tokenizer, ids, text in (
        (byte_level_tokenizer(), (), ""),
        (byte_level_tokenizer(bos_token="<s>"), (), ""),  # known, but not put there
        (metaspace_tokenizer(), (metaspace_tokenizer().bos_token_id,), "<s>"),
        (slow_tokenizer(), (), ""),
    ):
        assert (leading_ids(tokenizer), start_of_text(tokenizer)) == (ids, text)
    two = metaspace_tokenizer()
    start = ("<s>", two.bos_token_id)
    two.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> <s> $A", special_tokens=[start]
    )
    assert (leading_ids(two), start_of_text(two)) == ((two.bos_token_id,) * 2, "")
    assert PlainFormat(two).write(Conversation((QUESTION, ANSWER))).lead == leading_ids(two)


def test_an_end_of_text_is_one_token() -> None:
    assert end_of_text(byte_level_tokenizer()) == "<|endoftext|>"
    with pytest.raises(ValueError, match=r"data\.tokenizer_without_eos"):
        end_of_text(byte_level_tokenizer(eos_token=None))
    spelled = byte_level_tokenizer()
    spelled.split_special_tokens = True  # read as plain text
    with pytest.raises(ValueError, match=r"data\.eos_not_one_token\(eos=<\|endoftext\|>\)"):
        end_of_text(spelled)


def test_tags_that_are_no_tokens_are_counted_with_what_they_cost() -> None:
    template = CHATML.replace("<|im_start|>", "<turn>").replace("<|im_end|>", "</turn>")
    tokenizer = byte_level_tokenizer(template)
    found = TemplateFormat(tokenizer)
    assert tags_of(found) == ["<turn>", "</turn>"] * 2
    pieces = [len(tokenizer(tag)["input_ids"]) for tag in ("<turn>", "</turn>")]
    assert spelled_tags(found, tokenizer) == (["<turn>", "</turn>"], 2 * (sum(pieces) - 2))
    tokenizer.add_tokens(["<turn>"])
    assert spelled_tags(found, tokenizer) == (["</turn>"], 2 * (pieces[1] - 1))
    assert spelled_tags(form(CHATML), tokenizer) == ([], 0)
    assert tags_of(form("{{ raise_exception('no') }}")) == []


def test_messages_that_are_left_out_are_found_among_marked_ones() -> None:
    turns = [QUESTION, ANSWER, QUESTION, Turn("assistant", "B"), QUESTION, Turn("assistant", "A")]
    for left_out in (1, 3, 5):
        given = list(turns)
        given[left_out] = Turn("assistant", turns[left_out].text, is_learnt=False)
        is_learnt = form(MARKED).write(Conversation(tuple(given))).is_learnt
        assert [2 * n + 1 for n, one in enumerate(is_learnt) if not one] == [left_out]
    apart = MARKED.replace("{% endgeneration %}", "{% endgeneration %}|", 1)
    apart = apart.replace("|{% else %}", "{% generation %}<|im_end|>{% endgeneration %}{% else %}")
    given = [QUESTION, Turn("assistant", "A", is_learnt=False), QUESTION, ANSWER]
    assert form(apart).write(Conversation(tuple(given))).is_learnt == (False, False, True, True)
    empty = form("{% generation %}{% endgeneration %}" + MARKED).write(Conversation(tuple(given)))
    assert empty.is_learnt == (False, True)
    assert [empty.text[start:end] for start, end in empty.spans] == ["A<|im_end|>"] * 2
    deaf = MARKED.replace("{{ m['content'] }}{% endgen", "same{% endgen")
    with pytest.raises(FormatError, match=r"data\.untrained_message_not_located\(number=2\)"):
        form(deaf).write(Conversation(tuple(given)))


@pytest.mark.parametrize("wraps", [True, False])
def test_a_changed_message_calls_other_tools(wraps: bool) -> None:
    """By which is seen whether a template writes what a message of calls alone says."""
    call: dict[str, Any] = {"name": "add", "arguments": {}}
    calls = [{"function": call} if wraps else call]
    changed = _changed(Turn("assistant", "", fields=json.dumps({"tool_calls": calls})))
    (found,) = json.loads(changed.fields)["tool_calls"]
    assert found.get("function", found)["name"] not in ("", "add")
    assert _changed(Turn("user", "hello")).text not in ("", "hello")
