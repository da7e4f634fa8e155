"""Rows that lose text on their way into the model: R2 and R9, and their relatives.

Chat templates are small ones in the shape of published ones. Effects are read from token ids,
which are decoded; byte-level tokens give every text back.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.data.data_pipeline import DataPipeline, first_examples
from infrastructure.data.encoding.chat_format import (
    TemplateFormat,
    shipped_templates,
    tags_of,
)
from infrastructure.data.encoding.row_accounting import (
    Account,
    RowAccounting,
    reasoning_forms,
)
from infrastructure.data.encoding.tokenization import ConversationEncoder, Encoded
from infrastructure.data.readers.rows import BadRow, Conversation, Turn
from infrastructure.deployment.export import _saved_template
from infrastructure.testing.label_checks import check_labels
from infrastructure.testing.subject import Subject
from tests.data.builders import CHATML, byte_level_tokenizer, pipeline, write_jsonl
from tests.testing.check_models import MODELS, settings_of, trainer_of

GENERATION = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
# Phi-3's first: system messages are passed over.
WITHOUT_SYSTEM = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<|im_start|>user\n{{ m['content'] }}"
    "<|im_end|>\n{% elif m['role'] == 'assistant' %}<|im_start|>assistant\n{{ m['content'] }}"
    "<|im_end|>\n{% endif %}{% endfor %}" + GENERATION
)
# R1-Distill's: of an answer what follows the reasoning.
WITHOUT_THOUGHT = (
    "{% for m in messages %}{% set content = m['content'] %}"
    "{% if m['role'] == 'assistant' and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1] %}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ content }}<|im_end|>\n{% endfor %}" + GENERATION
)
# Llama 3.1's: a message with calls is its calls.
CALLS_ALONE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m.tool_calls %}{% for call in m.tool_calls %}{% set call = call.function %}"
    '{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}{% endfor %}'
    "{% else %}{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor %}" + GENERATION
)
# Qwen3's, without what it does with history: reasoning in a field, or in tags.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m.reasoning_content is string %}<think>\n{{ m.reasoning_content }}\n</think>\n\n"
    "{% endif %}{{ m['content'] }}<|im_end|>\n{% endfor %}" + GENERATION
)
# GLM-4's: only a field is read, and tags in the text are cut off.
FIELD_ALONE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% set text = m['content'] %}"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ text.split('</think>')[-1].strip() }}<|im_end|>\n{% endfor %}" + GENERATION
)
TOOL_USE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] or '' }}"
    "{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
    "<|im_end|>\n{% endfor %}" + GENERATION
)
USER = {"role": "user", "content": "What is the capital of France?"}
ANSWER = {"role": "assistant", "content": "It is Paris."}
SYSTEM = {"role": "system", "content": "Answer like a pirate."}


def call(name: str = "capital", text: str | None = None, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    called = [{"id": "call_1", "type": "function", "function": function}]
    return {"role": "assistant", "content": text, "tool_calls": called}


def data(tmp_path: Path, rows: list[Any], template: Any, **settings: Any) -> DataPipeline:
    rows = [{"messages": row} if isinstance(row, list) else row for row in rows]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    settings = {"validation_split": 0.0, "max_length": 500, **settings}
    return pipeline(path, tmp_path / "cache", byte_level_tokenizer(template), **settings)


def decoded(prepared: DataPipeline, number: int = 0) -> tuple[str, str]:
    """What an example says, and what of it is learned."""
    example = prepared.examples([number])[0]
    learned = example.input_ids[example.supervised]
    return str(prepared.tokenizer.decode(example.input_ids)), str(
        prepared.tokenizer.decode(learned)
    )


def numbered(rows: list[Any]) -> list[Any]:
    """So many different rows: the question of each has its number."""
    return [json.loads(json.dumps(row).replace("What is", f"{n}. What is")) for n, row in rows]


def copies(row: list[Any], count: int) -> list[Any]:
    return numbered([(n, row) for n in range(count)])


def kinds(prepared: DataPipeline) -> dict[Any, Any]:
    return {one["kind"]: one["rows"] for one in prepared.prepare().left_out}


def test_r2_a_system_message_that_is_passed_over_is_shown_before_the_first_step(
    tmp_path: Path,
) -> None:
    rows = [*copies([SYSTEM, USER, ANSWER], 30), [USER, ANSWER]]
    prepared = data(tmp_path, rows, WITHOUT_SYSTEM)
    assert kinds(prepared) == {"data.lost_system_message()": 30}
    assert prepared.report.system_prompt is None  # asking with it would change nothing
    assert "pirate" not in decoded(prepared)[0]
    (line,) = [one for one in prepared.report.lines(is_verbose=False) if "pirate" in one]
    assert "rows.jsonl:1" in line
    assert "30" in line
    assert line in prepared.report.lines()
    again = data(tmp_path, rows, WITHOUT_SYSTEM)  # from the cache
    assert again.prepare().from_cache
    assert line in again.report.lines(is_verbose=False)
    assert kinds(data(tmp_path / "whole", rows, CHATML)) == {}


def test_r2_reasoning_that_is_cut_off_is_never_trained_on_silently(tmp_path: Path) -> None:
    thought = {"role": "assistant", "content": "<think>\nFrance, so.\n</think>\n\nParis."}
    with pytest.raises(ValueError, match="France, so"):
        data(tmp_path, copies([USER, thought], 20), WITHOUT_THOUGHT).prepare()
    rows = [*copies([USER, ANSWER], 99), [USER, thought]]
    prepared = data(tmp_path / "few", rows, WITHOUT_THOUGHT)
    assert prepared.prepare().quarantine.counts == {"text left out": 1}  # 1 of 100: set aside
    assert prepared.report.num_train == 99
    with pytest.raises(ValueError, match=r"num_bad=2, num_rows=100,.*data\.skip_bad_rows\(now=1"):
        data(tmp_path / "more", [*rows[1:], [USER, thought]], WITHOUT_THOUGHT).prepare()
    accepted = data(
        tmp_path / "more", [*rows[1:], [USER, thought]], WITHOUT_THOUGHT, max_bad_rows_percent=2
    )
    assert accepted.prepare().num_train == 98


def test_r2_text_beside_a_call_is_learned_or_refused(tmp_path: Path) -> None:
    talk = [USER, call(text="Let me look.", of="France"), {"role": "tool", "content": "Paris"}]
    with pytest.raises(ValueError, match=r"data\.answer_not_written.*number=2.*Let me look"):
        data(tmp_path, copies([*talk, ANSWER], 20), CALLS_ALONE).prepare()
    bare = [USER, call(of="France"), {"role": "tool", "content": "Paris"}, ANSWER]
    prepared = data(tmp_path / "bare", copies(bare, 20), CALLS_ALONE)
    assert kinds(prepared) == {}
    assert '{"name": "capital", "parameters": {"of": "France"}}' in decoded(prepared)[1]


def test_r2_text_of_an_answer_that_is_only_read_is_counted(tmp_path: Path) -> None:
    talk = [USER, {**call(text="Let me look.", of="France"), "weight": 0}, USER, ANSWER]
    prepared = data(tmp_path, copies(talk, 20), CALLS_ALONE)
    assert kinds(prepared) == {"data.lost_answer()": 20}
    last = data(tmp_path, copies([*talk[:1], call(text="Hm.", of="x"), *talk[2:]], 20), CALLS_ALONE)
    last.close()
    last = data(tmp_path / "last", copies(talk, 20), CALLS_ALONE, train_on="last_answer")
    assert kinds(last) == {"data.lost_answer()": 20}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("template", [THINKING, FIELD_ALONE])
def test_r2_reasoning_in_a_field_that_is_not_read_is_written_in_the_one_that_is(
    tmp_path: Path, template: str, field: str
) -> None:
    row = [USER, {**ANSWER, field: "France, so Paris."}]
    prepared = data(tmp_path, copies(row, 20), template)
    assert kinds(prepared) == {}
    assert "France, so Paris." in decoded(prepared)[1]
    assert decoded(prepared)[1].count("France, so Paris.") == 1
    read = data(
        tmp_path / "read",
        copies([USER, {**ANSWER, "reasoning_content": "France, so Paris."}], 20),
        template,
    )
    read.prepare()
    assert decoded(prepared) == decoded(read)
    notes = [note for note in prepared.report.notes if "=20" in note or "20 rows" in note]
    assert len(notes) == (field != "reasoning_content")


def test_r2_reasoning_in_tags_is_written_in_the_field_that_is_read(tmp_path: Path) -> None:
    thought = {"role": "assistant", "content": "<think>\nFrance, so.\n</think>\n\nParis."}
    prepared = data(tmp_path, copies([USER, thought], 20), FIELD_ALONE)
    assert kinds(prepared) == {}
    assert "<think>France, so.</think>Paris." in decoded(prepared)[1]
    tags = data(tmp_path / "tags", copies([USER, thought], 20), THINKING)
    assert kinds(tags) == {}
    assert thought["content"] in decoded(tags)[1]
    assert not any("reasoning" in note for note in tags.report.notes)  # as it stands


def test_r2_reasoning_in_a_field_is_written_in_the_tags_that_are_read(tmp_path: Path) -> None:
    """A template that knows the tags, if only to look for them, and no field."""
    template = CHATML + "{% if '</think>' in messages[-1].content %}{% endif %}"
    row = [USER, {**ANSWER, "reasoning_content": "\nFrance, so Paris. "}]
    prepared = data(tmp_path, copies(row, 20), template)
    assert kinds(prepared) == {}
    wanted = "<think>\nFrance, so Paris.\n</think>\n\nIt is Paris.<|im_end|>"
    assert decoded(prepared)[1] == wanted


def test_r2_reasoning_that_no_form_saves_is_refused(tmp_path: Path) -> None:
    row = [USER, {**ANSWER, "reasoning_content": "France, so Paris."}]
    for number, template in enumerate((CHATML, None)):
        with pytest.raises(ValueError, match="France, so Paris"):
            data(tmp_path / str(number), copies(row, 20), template).prepare()


def test_r2_the_refusal_names_a_template_that_writes_it_all(tmp_path: Path) -> None:
    row = [USER, {**ANSWER, "reasoning_content": "France, so Paris."}]
    with pytest.raises(ValueError, match=r"data\.use_complete_template") as refused:
        data(tmp_path, copies(row, 20), CHATML).prepare()
    shipped = shipped_templates()
    named = [name for name in shipped if re.search(rf"\b{name}\b", str(refused.value))]
    assert len(named) >= bool(shipped)
    for name in named:  # in tokens that the tokenizer has
        tokenizer = byte_level_tokenizer()
        tags = tags_of(TemplateFormat(tokenizer, shipped[name].read_text("utf-8")))
        assert set(tags) <= set(tokenizer.get_vocab())
        prepared = data(tmp_path / name, copies(row, 20), shipped[name].read_text("utf-8"))
        assert kinds(prepared) == {}
        assert "France, so Paris." in decoded(prepared)[1]
        assert prepared.report.num_train == 20


def test_r2_the_preview_shows_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared = data(tmp_path, copies([SYSTEM, USER, ANSWER], 30), WITHOUT_SYSTEM)
    (shown,) = first_examples(prepared, 1)
    assert len(shown.left_out) == 1
    assert "pirate" in shown.left_out[0]
    stream = data(tmp_path, copies([SYSTEM, USER, ANSWER], 30), WITHOUT_SYSTEM, streaming=True)
    assert "pirate" in first_examples(stream, 1)[0].left_out[0]


def test_r2_a_prompt_for_people_shows_what_the_model_does_not_read(tmp_path: Path) -> None:
    rows = copies([SYSTEM, USER, ANSWER], 30)
    prepared = data(tmp_path, rows, WITHOUT_SYSTEM, validation_split=0.3)
    question = prepared.questions()[0]
    assert "data.message_left_out(role=system, text=Answer like a pirate.)" in question.prompt
    assert "pirate" not in prepared.tokenizer.decode(question.prompt_ids)
    whole = data(tmp_path / "whole", rows, CHATML, validation_split=0.3)
    assert "system: Answer like a pirate." in whole.questions()[0].prompt


def test_r2_what_only_the_prompt_loses_is_noted(tmp_path: Path) -> None:
    """The template writes a system message once there is an answer."""
    late = CHATML.replace(
        "{% for m in messages %}",
        "{% for m in messages if m.role != 'system' or not add_generation_prompt %}",
    )
    prepared = data(tmp_path, copies([SYSTEM, USER, ANSWER], 20), late, train_on="all")
    assert kinds(prepared) == {}
    assert any("pirate" in note for note in prepared.report.notes)


@pytest.mark.parametrize(("template", "status"), [(WITHOUT_SYSTEM, "warn"), (CHATML, "pass")])
def test_r2_the_checks_before_a_run_do_not_pass(tmp_path: Path, template: str, status: str) -> None:
    tokenizer = byte_level_tokenizer(template)
    sizes = {**MODELS["llama"][1], "vocab_size": len(tokenizer), "max_position_embeddings": 256}
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    settings = settings_of(tmp_path, {"name": str(tmp_path / "model")})
    rows = [{"messages": row} for row in copies([SYSTEM, USER, ANSWER], 30)]
    settings["data"]["path"] = str(write_jsonl(tmp_path / "rows.jsonl", rows))
    settings["data"]["max_length"] = 128
    result = check_labels(Subject(trainer_of(DeploymentConfig(**settings))))
    assert result.status == status, result


def test_r2_a_message_that_no_answer_follows_is_counted(tmp_path: Path) -> None:
    rows = copies([USER, ANSWER, {"role": "user", "content": "Thanks, matey!"}], 20)
    prepared = data(tmp_path, rows, CHATML)
    assert kinds(prepared) == {"data.lost_after_last()": 20}
    assert "matey" not in decoded(prepared)[0]


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "capital",
            "description": "Looks it up.",
            "parameters": {"type": "object", "properties": {"of": {"type": "string"}}},
        },
    }
]


def test_r9_rows_with_tools_take_the_models_own_template_for_tools(tmp_path: Path) -> None:
    both: Any = {"default": CHATML, "tool_use": TOOL_USE}
    talk = [USER, call(of="France"), {"role": "tool", "content": "Paris"}, ANSWER]
    rows = [{"messages": row, "tools": TOOLS} for row in copies(talk, 20)]
    prepared = data(tmp_path, rows, both)
    assert kinds(prepared) == {}
    text, learned = decoded(prepared)
    assert '"name": "capital", "description": "Looks it up."' in text
    assert '{"name": "capital", "arguments": {"of": "France"}}' in learned
    alone = data(tmp_path / "alone", rows, TOOL_USE)
    assert decoded(alone) == (text, learned)  # the ids that this template gives by itself
    assert prepared.prepare().rows_read == 20
    turns = (Turn("user", "Where?"),)
    inputs = json.dumps({"tools": TOOLS})
    encoder = ConversationEncoder(byte_level_tokenizer(both), max_length=500)
    tokenizer: Any = encoder.tokenizer
    wanted = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Where?"}], tools=TOOLS, add_generation_prompt=True
    )["input_ids"]
    assert encoder.prompt_ids(turns, inputs) == list(wanted)
    assert encoder.prompt_ids(turns) != list(wanted)


def test_r9_an_export_keeps_the_list_of_templates(tmp_path: Path) -> None:
    both: Any = {"default": CHATML, "tool_use": TOOL_USE}
    for template in (both, CHATML, None):
        folder = tmp_path / str(len(template or ""))
        byte_level_tokenizer(template).save_pretrained(folder)
        assert _saved_template(folder) == template


def test_r9_rows_without_tools_keep_the_default_template(tmp_path: Path) -> None:
    both: Any = {"default": CHATML, "tool_use": TOOL_USE + "!"}
    prepared = data(tmp_path, copies([SYSTEM, USER, ANSWER], 20), both)
    plain = data(tmp_path / "plain", copies([SYSTEM, USER, ANSWER], 20), CHATML)
    assert decoded(prepared) == decoded(plain)


# Relatives: whatever a text looks like, it is found where it stands, and only there.

STRANGE = [
    "b",
    "user",
    "content",
    "system",
    "\n",
    " b ",
    "",
    "b b b",
    '{"role": "user", "content": "b"}',
    'it\'s "quoted" \\ and \\n',
    "<|im_start|>user\nb<|im_end|>",
    "</think>",
    "<think>b</think>",
    "<tool_call>b</tool_call>",
    "Jörg 你好 👩‍👩‍👧 \u2028 \x00",
    "\U000f0000 \U000f0001",
    "&lt;b&gt; <b>",
    "{{ b }} {% raw %}",
    "790000000000",
    "Jörg's \"<b>\" & 'c'",
]
QUOTED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | FILTER }}<|im_end|>\n"
    "{% endfor %}" + GENERATION
)


def account(template: str | None, turns: list[Turn], inputs: str = "") -> Account:
    encoder = ConversationEncoder(byte_level_tokenizer(template), max_length=9)
    conversation = Conversation(tuple(turns), inputs=inputs)
    text = encoder._text_of(conversation)
    return RowAccounting(encoder._text_of, [template or ""]).account(conversation, text)


def turns_of(*texts: str) -> list[Turn]:
    roles = ("system", "user", "assistant")
    return [Turn(role, text) for role, text in zip(roles, texts, strict=True)]


@pytest.mark.parametrize("text", STRANGE)
def test_whatever_a_text_looks_like_it_is_whole(text: str) -> None:
    templates = [CHATML, None, WITHOUT_THOUGHT.replace("in content", "in 'no'"), TOOL_USE]
    templates += [QUOTED.replace("FILTER", one) for one in ("tojson", "trim", "e", "string")]
    templates += [QUOTED.replace("{{ m.content | FILTER }}", "{{ {'a': m.content} }}")]
    for template in templates:
        for turns in (
            turns_of(text, "b", "c"),
            turns_of("a", text, "c"),
            turns_of("a", "b", text),
            turns_of(*[text] * 3),
        ):
            assert account(template, turns) == Account(), (template, turns)


@pytest.mark.parametrize("text", [one for one in STRANGE if one.strip()])
def test_whatever_a_lost_text_looks_like_it_is_missed(text: str) -> None:
    """Also where the rest of the row says the same."""
    for others in (
        ("b", "c"),
        (text, "c"),
        ("b", text),
        (text, text),
        (f"a{text}b", f"{text} {text}"),
    ):
        (missing,) = account(WITHOUT_SYSTEM, turns_of(text, *others)).missing
        assert (missing.kind, missing.text, missing.message) == (
            "data.lost_system_message",
            text.strip(),
            1,
        )
        assert not missing.is_learnt
        assert not missing.is_cut


@pytest.mark.parametrize(
    "value", [*[v for v in STRANGE if v.strip()], 7, -0.5, 10**30, 1e-7, ["b", 2], {"c": "b"}]
)
def test_each_argument_is_found_or_missed(value: Any) -> None:
    turns = [
        Turn("user", "b"),
        Turn("assistant", "", json.dumps({"tool_calls": call(key=value, other="b")["tool_calls"]})),
    ]
    assert account(TOOL_USE, turns) == Account()
    assert account(CALLS_ALONE, turns) == Account()
    for written in (
        "call.arguments",
        "call.arguments | tojson(ensure_ascii=True)",
        "call.arguments | tojson(indent=2)",
    ):
        template = CALLS_ALONE.replace("call.arguments | tojson", written)
        assert account(template, turns) == Account(), written
    names = account(CALLS_ALONE.replace("call.arguments | tojson", "1"), turns)
    assert {one.kind for one in names.missing} == {"data.lost_argument"}
    assert all(one.is_learnt for one in names.missing)
    first = CALLS_ALONE.replace(
        "call.arguments | tojson", "{'other': call.arguments.other} | tojson"
    )
    (missing, *inner) = account(first, turns).missing
    assert "argument=key," in missing.what
    assert all("argument=key." in one.what for one in inner)


def test_of_two_calls_of_one_name_the_lost_one_is_named() -> None:
    calls = [*call(of="France")["tool_calls"], *call(of="Spain")["tool_calls"]]
    turns = [Turn("user", "b"), Turn("assistant", "", json.dumps({"tool_calls": calls}))]
    template = CALLS_ALONE.replace("in m.tool_calls %}", "in m.tool_calls[:1] %}")
    missing = account(template, turns).missing
    assert [one.text for one in missing] == ["capital", "Spain"]


def test_sorted_arguments_are_found() -> None:
    turns = [
        Turn("user", "b"),
        Turn(
            "assistant",
            "",
            json.dumps({"tool_calls": call(Zeta="z", alpha="a", mid=1)["tool_calls"]}),
        ),
    ]
    written = "{% for k, v in call.arguments | dictsort %}{{ k }}={{ v }};{% endfor %}"
    template = CALLS_ALONE.replace("{{ call.arguments | tojson }}", written)
    assert account(template, turns) == Account()
    values = template.replace("{{ k }}=", "")
    assert len(account(values, turns).missing) == 3  # their names


def test_a_cut_text_is_missed_as_cut() -> None:
    template = CHATML.replace("{{ m['content'] }}", "{{ m['content'][:11] }}")
    whole = account(template, turns_of("Be brief.", "b", "c"))
    assert whole == Account()
    (missing,) = account(template, turns_of("b", "b", "It is Paris.")).missing
    assert missing.is_cut
    assert missing.is_learnt
    assert missing.text == "It is Paris."


def test_a_template_that_decides_by_a_word_is_seen_through() -> None:
    """What it leaves out depends on what the text says: no mark can stand for the whole text."""
    template = CHATML.replace(
        "{% for m in messages %}", "{% for m in messages if 'secret' not in m.content %}"
    )
    (missing,) = account(template, turns_of("my secret plan", "b", "c")).missing
    assert missing.text == "my secret plan"
    assert account(template, turns_of("my plan", "b", "c")) == Account()


def test_what_cannot_be_determined_is_no_loss() -> None:
    """A text in capital letters is written, though not as it stands; the others can be told."""
    template = WITHOUT_SYSTEM.replace(
        "user\n{{ m['content'] }}", "user\n{{ m['content'] | upper }}"
    )
    found = account(template, turns_of("Be brief.", "Where?", "Paris."))
    assert [one.text for one in found.missing] == ["Be brief."]
    assert len(found.undetermined) == 1
    assert "2" in found.undetermined[0]


def test_undetermined_rows_are_counted_and_kept(tmp_path: Path) -> None:
    template = CHATML.replace("{{ m['content'] }}", "{{ m['content'] | upper }}")
    prepared = data(tmp_path, copies([USER, ANSWER], 20), template)
    assert prepared.prepare().undetermined_rows == 20
    assert prepared.report.num_train == 20
    assert any("data.template_output_undetermined" in note for note in prepared.report.notes)


def test_pictures_and_texts_in_parts_are_found() -> None:
    parts = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}"
        "{{ m.content }}{% else %}{% for part in m.content %}{% if part.type == 'text' %}"
        "{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}" + GENERATION
    )
    content = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    turns = [Turn("user", "one two", json.dumps({"content": content})), Turn("assistant", "c")]
    assert account(parts, turns) == Account()
    (missing,) = account(parts.replace("in m.content %}", "in m.content[:1] %}"), turns).missing
    assert missing.is_cut


def test_reasoning_that_a_message_holds_twice_is_lost_only_where_it_differs() -> None:
    def thought(**fields: str) -> list[Turn]:
        return [Turn("user", "b"), Turn("assistant", "c", json.dumps(fields))]

    both = thought(reasoning_content="So c.", thinking=" So c.\n")
    assert account(THINKING, both) == Account()
    other = account(THINKING, thought(reasoning_content="So c.", thinking="So d."))
    assert [one.text for one in other.missing] == ["So d."]
    neither = account(CHATML, both)
    assert [one.text for one in neither.missing] == ["So c.", "So c."]


def test_tools_that_are_not_described_are_counted() -> None:
    inputs = json.dumps({"tools": TOOLS})
    turns = [Turn("user", "b"), Turn("assistant", "c")]
    assert account(TOOL_USE, turns, inputs) == Account()
    names = TOOL_USE.replace("{{ tools | tojson }}", "{{ tools[0].function.name }}")
    texts = {one.text for one in account(names, turns, inputs).missing}
    assert texts == {"Looks it up.", "of"}
    assert {one.text for one in account(CHATML, turns, inputs).missing} == {*texts, "capital"}


HEALTHY: list[Any] = [
    [USER, ANSWER],
    [SYSTEM, USER, ANSWER],
    [SYSTEM, USER, ANSWER, USER, ANSWER],
    [USER, {"role": "assistant", "content": 'Use `<b>` & </b>, said "she"\'s {x: 1}'}],
    {"question": "b", "answer": "b"},
    {"instruction": "Give the next letter.", "input": "b", "output": "c"},
    {"prompt": "b", "completion": " c"},
    {"text": "Just a text."},
]


@pytest.mark.parametrize("row", HEALTHY)
def test_healthy_rows_give_no_warning(tmp_path: Path, row: Any) -> None:
    for number, template in enumerate((CHATML, THINKING, TOOL_USE, None)):
        prepared = data(tmp_path / str(number), [row] * 5, template)
        assert kinds(prepared) == {}
        assert prepared.report.undetermined_rows == 0
        assert prepared.report.quarantine.total == 0
        assert not any("never_read" in line for line in prepared.report.lines())


def test_a_row_of_many_forms_needs_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infrastructure.data.encoding.row_accounting.MOST_FORMS", 3)
    encoder = ConversationEncoder(byte_level_tokenizer(CHATML), max_length=9)
    accounting = RowAccounting(encoder._text_of, [CHATML])
    for length in range(1, 9):
        conversation = Conversation(tuple(turns_of("a", "b", "c")) * length)
        assert accounting.account(conversation, encoder._text_of(conversation)) == Account()
    assert len(accounting._forms) == 3


def test_rows_of_one_form_share_one_marked_writing() -> None:
    encoder = ConversationEncoder(byte_level_tokenizer(TOOL_USE), max_length=9)
    calls = []

    def write(conversation: Conversation) -> str:
        calls.append(conversation)
        return encoder._text_of(conversation)

    accounting = RowAccounting(write, [TOOL_USE])
    for number, text in enumerate(("b", "it's", "Jörg", "x" * 500)):
        called = call(city=text, n=number, f=number / 3, Zeta=[text, number])
        called["tool_calls"][0]["id"] = f"call_{number}"
        more = [
            Turn("assistant", "", json.dumps({"tool_calls": called["tool_calls"]})),
            Turn("tool", text, json.dumps({"tool_call_id": f"call_{number}"})),
            Turn("assistant", text),
        ]
        conversation = Conversation((*turns_of(text, text, text), *more))
        assert accounting.account(conversation, encoder._text_of(conversation)) == Account()
    assert len(calls) == 1


def test_rows_of_other_forms_do_not_share_a_marked_writing() -> None:
    """Not even where they say the same: what one of them loses the other does not have."""
    encoder = ConversationEncoder(byte_level_tokenizer(CHATML), max_length=9)
    calls = []

    def write(conversation: Conversation) -> str:
        calls.append(conversation)
        return encoder._text_of(conversation)

    accounting = RowAccounting(write, [CHATML])
    turns = turns_of("a", "b", "c")
    thought = [*turns[:2], Turn("assistant", "c", json.dumps({"thinking": "so c"}))]
    rows = [
        (Conversation(tuple(turns)), 0),
        (Conversation(tuple(thought)), 1),
        (Conversation(tuple(turns), inputs=json.dumps({"tools": TOOLS})), 3),
        (Conversation(tuple(turns) * 2, num_given=3), 0),
        (Conversation(tuple(turns) * 2), 0),
        (Conversation((*turns[:2], replace(turns[2], is_learnt=False), *turns)), 0),
    ]
    for conversation, num_missing in rows * 2:
        found = accounting.account(conversation, encoder._text_of(conversation))
        assert len(found.missing) == num_missing
        assert found.undetermined == ()
    assert len(calls) == len(rows)


def test_the_form_that_loses_nothing_is_taken(tmp_path: Path) -> None:
    """Not the first that the template names."""
    template = CHATML.replace(
        "{{ m['content'] }}",
        "{% if m.reasoning_content %}{% endif %}{% if m.thinking %}<think>{{ m.thinking }}</think>"
        "{% endif %}{{ m['content'] }}",
    )
    prepared = data(tmp_path, copies([USER, {**ANSWER, "reasoning": "So."}], 20), template)
    assert kinds(prepared) == {}
    assert decoded(prepared)[1].startswith("<think>So.</think>It is Paris.")


def test_earlier_reasoning_is_no_mark_of_a_message_that_is_left_out() -> None:
    encoder = ConversationEncoder(byte_level_tokenizer(WITHOUT_THOUGHT), max_length=90)
    turns = [Turn("user", "b"), Turn("assistant", "<think>so</think>c"), Turn("user", "d")]
    assert encoder.prompt_account(turns).missing[0].kind == "data.lost_reasoning"
    assert "left_out" not in encoder.prompt_text(turns)


def test_r9_options_alone_take_the_default_template() -> None:
    both: Any = {"default": CHATML, "tool_use": TOOL_USE + "!"}
    encoder = ConversationEncoder(byte_level_tokenizer(both), max_length=90)
    turns = [Turn("user", "b")]
    options = json.dumps({"chat_template_kwargs": {"enable_thinking": False}})
    assert encoder.prompt_ids(turns, options) == encoder.prompt_ids(turns)


def test_r9_whether_an_end_is_added_is_for_the_template_that_writes_the_row() -> None:
    """The one for tools marks answers and ends none; the default ends them."""
    marks = "{% generation %}{{ m['content'] }}{% endgeneration %}"
    tools = "{% for m in messages %}{% if m.role == 'assistant' %}" + marks
    tools += "{% else %}{{ m['content'] }}\n{% endif %}{% endfor %}"
    both: Any = {
        "default": CHATML.replace("{{ m['content'] }}<|im_end|>", f"{marks}<|im_end|>"),
        "tool_use": tools,
    }
    row = Conversation(
        (Turn("user", "b"), Turn("assistant", "c")), inputs=json.dumps({"tools": TOOLS})
    )
    results = [
        ConversationEncoder(byte_level_tokenizer(template), max_length=90).encode([row])[0]
        for template in (both, tools)
    ]
    listed, alone = (one.example.input_ids.tolist() for one in results if isinstance(one, Encoded))
    assert listed == alone
    assert listed[-1] == byte_level_tokenizer().eos_token_id


def test_the_result_is_a_bad_row_with_its_place() -> None:
    encoder = ConversationEncoder(byte_level_tokenizer(CHATML), max_length=90)
    turns = (Turn("user", "b"), Turn("assistant", "c", json.dumps({"thinking": "so c"})))
    (result,) = encoder.encode([Conversation(turns, source="a.jsonl", line=7)])
    assert isinstance(result, BadRow)
    assert (result.place, result.reason) == ("a.jsonl:7", "text left out")
    assert "so c" in result.detail


def test_r2_reasoning_in_another_form_is_written_once() -> None:
    answer = Turn("assistant", "Yes.", fields=json.dumps({"reasoning": "Hm.", "name": "a"}))
    row = Conversation((Turn("user", "Is it?"), answer))
    forms = [*reasoning_forms(row, "{{ m.reasoning_content }}{{ m.thinking }}</think>")]
    written = [form.turns[-1].text + str(form.turns[-1].fields) for form in forms]
    assert len(written) == 3
    assert [text.count("Hm.") for text in written] == [1, 1, 1]
    assert all('"name": "a"' in text for text in written)
