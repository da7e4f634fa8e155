"""What a row holds is used, or reported as unused."""

from pathlib import Path
from typing import Any

import pytest

from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.data.encoding.tokenization import ConversationEncoder
from infrastructure.data.preparation import plan as planning
from tests.data.builders import byte_level_tokenizer, pipeline, write_jsonl
from tests.data.trl_masks import (
    Case,
    Learnt,
    by_temper,
    by_transformers,
    model_template,
    needs_templates,
    tokenizer_for,
    training_templates,
)

ANSWER = {"role": "assistant", "content": "Dublin"}
DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a kind helper of people."
    "<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def question(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"Question {number}?"}


def chats(count: int) -> list[dict[str, Any]]:
    """Conversations of several answers."""
    return [
        {
            "messages": [
                turn for n in range(2 + number % 3) for turn in (question(number + n), ANSWER)
            ]
        }
        for number in range(count)
    ]


def prepared(rows: Any, folder: Path, tokenizer: Any, **settings: Any) -> DataPipeline:
    path = write_jsonl(folder / "rows.jsonl", rows)
    return pipeline(path, folder / "cache", tokenizer, **settings)


def learnt_text(data: DataPipeline) -> list[str]:
    """What of each training example is learnt, in the order of the file."""
    examples = data.examples(range(data.num_candidates))
    return [data.tokenizer.decode(e.input_ids[e.supervised]) for e in examples]


@pytest.mark.parametrize("train_on", ["answers", "all"])
def test_a_message_of_weight_0_is_not_trained_on(tmp_path: Path, train_on: str) -> None:
    wrong = {"role": "assistant", "content": "Paris", "weight": 0}
    right = {**ANSWER, "weight": 1}
    rows = [{"messages": [question(n), wrong, question(n + 1), right]} for n in range(20)]
    data = prepared(rows, tmp_path, byte_level_tokenizer(DEFAULT_SYSTEM), train_on=train_on)
    lines = data.prepare().lines()
    assert "data.answers_with_zero_weight(count=20)" in lines
    texts = learnt_text(data)
    assert texts
    assert not any("Paris" in text for text in texts)
    assert all("Dublin" in text for text in texts)
    unused = ("data.unused_fields", "data.columns_unused_too", "data.unused_columns")
    assert not any(one in line for line in lines for one in unused)  # the weight is


def test_what_is_not_used_is_named_once_with_what_to_do(tmp_path: Path) -> None:
    rows = [
        {"question": f"{n}?", "answer": "x", "source": "web", "empty": None}
        | ({"seldom": 1} if n == 33 else {})
        for n in range(40)
    ]
    for num_workers in (0, 1):
        data = prepared(rows, tmp_path, byte_level_tokenizer(), num_workers=num_workers)
        (line,) = [line for line in data.prepare().lines() if "data.unused_columns" in line]
        assert line == "data.unused_columns(columns=source, seldom)"
        (line,) = [
            line
            for line in data.report.lines(is_verbose=False)
            if "data.columns_unused_too" in line
        ]
        assert ", columns=source, seldom)" in line
        data.close()


@needs_templates
def test_fields_of_messages_that_the_template_does_not_read_are_named(tmp_path: Path) -> None:
    thought = {**ANSWER, "reasoning_content": "easy", "mood": "good", "weight": 0}
    rows = [
        {"messages": [question(n), thought, question(n), ANSWER], "tools": [{"name": "f"}]}
        for n in range(20)
    ]
    tokenizer = byte_level_tokenizer(DEFAULT_SYSTEM)
    for folder, one in (("template", tokenizer), ("plain", byte_level_tokenizer())):
        data = prepared(rows, tmp_path / folder, one)
        lines = data.prepare().lines(is_verbose=False)
        (fields,) = [line for line in lines if line.startswith("data.unused_fields(")]
        assert fields.startswith("data.unused_fields(fields=mood, ")
        assert {one["kind"]: one["rows"] for one in data.report.left_out} == {
            "data.lost_reasoning()": 20,
            "data.lost_tool()": 20,
        }
        (first, second) = [line for line in lines if "rows.jsonl:1" in line]
        is_plain = folder == "plain"
        assert (
            ("data.needs_chat_template" in first)
            == ("data.needs_chat_template" in second)
            == is_plain
        )
    reads = tokenizer_for(training_templates()["qwen3"])
    data = prepared(rows, tmp_path / "qwen3", reads)
    (line,) = [line for line in data.prepare().lines() if "unused_fields" in line]
    assert line.startswith("data.unused_fields(fields=mood, ")
    assert data.report.left_out == []


@needs_templates
def test_a_call_that_the_template_leaves_out_is_refused_though_its_name_is_spelled(
    tmp_path: Path,
) -> None:
    call = {"type": "function", "function": {"name": "capital", "arguments": {"of": "France"}}}
    talk = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "capital", "content": "Paris"},
        ANSWER,
    ]
    data = prepared([{"messages": talk}] * 20, tmp_path, byte_level_tokenizer(DEFAULT_SYSTEM))
    with pytest.raises(ValueError, match=r"data\.answer_not_written"):
        data.prepare()


def test_what_a_template_adds_by_itself_is_reported(tmp_path: Path) -> None:
    lines = prepared(chats(20), tmp_path, byte_level_tokenizer(DEFAULT_SYSTEM)).prepare().lines()
    (line,) = [line for line in lines if "data.template_adds_preamble" in line]
    assert "You are a kind helper of people." in line
    silent = byte_level_tokenizer(DEFAULT_SYSTEM[DEFAULT_SYSTEM.index("{% for") :])
    lines = prepared(chats(20), tmp_path / "silent", silent).prepare().lines()
    assert not any("data.template_adds_preamble" in line for line in lines)


def test_prepared_data_of_other_labels_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = byte_level_tokenizer(DEFAULT_SYSTEM)
    with monkeypatch.context() as before:
        before.setattr(planning, "LABELS_VERSION", 1)
        prepared(chats(20), tmp_path, tokenizer).prepare()
        assert prepared(chats(20), tmp_path, tokenizer).prepare().from_cache
    assert not prepared(chats(20), tmp_path, tokenizer).prepare().from_cache


def test_empty_answers_are_counted(tmp_path: Path) -> None:
    rows = chats(20)
    rows[3]["messages"][1] = {"role": "assistant", "content": ""}
    lines = prepared(rows, tmp_path, byte_level_tokenizer(DEFAULT_SYSTEM)).prepare().lines()
    assert "data.empty_answers(count=1)" in lines


@needs_templates
def test_qwen3_learns_every_answer_of_60_conversations(tmp_path: Path) -> None:
    """Its own template writes earlier answers without their (empty) thinking."""
    own = model_template("qwen3")
    tokenizer = tokenizer_for(own)
    data = prepared(chats(60), tmp_path, tokenizer, max_bad_rows_percent=0)
    report = data.prepare()
    assert report.num_train + report.num_evaluation == 60
    (line,) = [line for line in report.lines() if "data.training_template_used" in line]
    assert line.endswith(", marks=)")
    assert "data.training_template_used(origin=" in line
    assert tokenizer.chat_template == own  # what is saved and used
    trls = tokenizer_for(training_templates()["qwen3"])
    encoder = ConversationEncoder(tokenizer_for(own), max_length=500)
    for row in chats(9):
        wanted = by_transformers(trls, Case(row["messages"]))
        assert isinstance(wanted, Learnt)
        assert by_temper(encoder, Case(row["messages"])) == wanted
    (question, *_) = data.questions(1)
    messages = data.evaluation_rows(1)[0].messages
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert question.prompt_ids == prompt
    assert len(messages) > 1
    shown = question.prompt.splitlines()  # all that the model is given, for people
    assert shown == ["user: Question 0?", "assistant: Dublin", "user: Question 1?"]


@needs_templates
def test_qwen3_learns_all_as_its_own_template_writes_it(tmp_path: Path) -> None:
    tokenizer = tokenizer_for(model_template("qwen3"))
    settings = {"max_bad_rows_percent": 0, "train_on": "all", "validation_split": 0}
    data = prepared(chats(60), tmp_path, tokenizer, **settings)
    report = data.prepare()
    assert report.num_train + report.num_evaluation == 60
    whole = tokenizer.apply_chat_template(chats(60)[7]["messages"])["input_ids"]
    assert data.examples([7])[0].input_ids.tolist() == whole
    assert not any("TRL" in line for line in data.report.lines())
