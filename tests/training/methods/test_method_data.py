"""Rows as TRL reads them: with a chat template and without, set aside with their places, split."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers.normalizers import Lowercase

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.methods import OPTIONS, RowKind
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.data.readers.rows import BadRow, Row
from infrastructure.data.readers.sources import about_splits, discover, files_of
from infrastructure.training.methods.method_data import (
    LABEL_COLUMNS,
    RANKED_PAIRS,
    MethodData,
    MethodRow,
    MethodShape,
    read_data,
    recognise,
    sample,
)
from tests.conftest import train_tiny_tokenizer
from tests.data.builders import metaspace_tokenizer
from tests.field.test_methods import without_bytes
from tests.training.methods.method_runs import rows_of, write_rows

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tiny_tokenizer(pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def read(tmp_path: Path, tokenizer: Any, rows: list[Any], method: str, **data: Any) -> MethodData:
    path = write_rows(tmp_path / "rows.jsonl", rows)
    training = data.pop("training", {})
    config = DeploymentConfig(
        data={"path": str(path), "validation_split": 0.0, "max_length": 64, **data},
        training={"method": method, **training},
    )
    return read_data(config, tokenizer, tmp_path / "quarantine.jsonl")


def test_without_a_chat_template_rows_are_text_with_a_line_break(
    tmp_path: Path, tokenizer: Any
) -> None:
    data = read(tmp_path, tokenizer, rows_of("pairs", 3), "dpo")
    assert data.train[0]["prompt"].endswith("=\n")
    chat = [
        {
            "prompt": [{"role": "user", "content": "Hi"}],
            "chosen": [{"role": "assistant", "content": "a"}],
            "rejected": [{"role": "assistant", "content": "b"}],
        }
    ]
    data = read(tmp_path, tokenizer, chat, "dpo")
    assert data.train == [{"prompt": "Hi\n", "chosen": "a", "rejected": "b"}]
    assert data.system_prompt is None
    chat[0]["prompt"].insert(0, {"role": "system", "content": "Be brief."})
    assert read(tmp_path, tokenizer, chat, "dpo").system_prompt == "Be brief."


@pytest.mark.parametrize("template", [None, TEMPLATE])
@pytest.mark.parametrize(
    ("method", "name"), [("dpo", "chosen"), ("grpo", "completion"), ("kto", "completion")]
)
def test_rows_have_the_numbers_that_they_have_where_answers_are_trained_on(
    method: str,
    name: str,
    template: str | None,
    tmp_path: Path,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", template)
    more: dict[str, Any] = {"dpo": {"rejected": "worse"}, "kto": {"label": True}}.get(method, {})
    rows = [{"prompt": f"What is {n}?", name: f"It is {n}", **more} for n in range(4)]
    bad = {"prompt": "What is 9?", "completion": "Is it?", "label": False}
    training = {"max_completion_length": 8}
    data = read(tmp_path, tokenizer, rows + [bad] * (method == "kto"), method, training=training)
    answered = [{"prompt": row["prompt"], "completion": row[name]} for row in rows]
    pipeline = DataPipeline(
        DataConfig(
            path=str(write_rows(tmp_path / "answered.jsonl", answered)),
            max_length=64,
            num_workers=0,
            validation_split=0,
        ),
        tokenizer,
        cache_config=CacheConfig(directory=str(tmp_path / "cache")),
    )
    expected = pipeline.contents(held_out=False)
    assert expected is not None
    assert data.contents().tolist() == expected.tolist()


def test_with_one_all_rows_are_messages(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", TEMPLATE)
    [row] = read(tmp_path, tokenizer, rows_of("pairs", 1), "dpo").train
    assert row["prompt"] == [{"role": "user", "content": "7 + 0 ="}]
    assert [m["role"] for m in row["chosen"] + row["rejected"]] == ["assistant"] * 2
    texts = [{"chosen": "Q: a\nA: b", "rejected": "Q: a\nA: c"}]
    data = read(tmp_path, tokenizer, texts, "dpo")
    assert "methods.texts_without_template" in data.notes[0]
    assert "is_plain" not in data.train[0]


def test_what_trl_would_leave_out_silently_is_set_aside_with_its_place(
    tmp_path: Path, tokenizer: Any
) -> None:
    long = {"prompt": "1 " * 80, "chosen": "a", "rejected": "b"}
    tail = {"prompt": "1", "chosen": "a " * 80, "rejected": "b"}
    rows = [*rows_of("pairs", 8), long, tail]
    data = read(tmp_path, tokenizer, rows, "dpo", max_bad_rows_percent=50)
    assert [bad.place for bad in data.quarantine.bad_rows] == ["rows.jsonl:9"]
    assert (len(data.train), data.num_cut) == (9, 1)
    assert "methods.rows_truncated(count=1)" in data.lines()[0]
    for method, setting in (("reward", "keep_start"), ("dpo", "quarantine")):
        data = read(tmp_path, tokenizer, rows, method, max_bad_rows_percent=50, over_length=setting)
        assert [bad.place for bad in data.quarantine.bad_rows] == ["rows.jsonl:9", "rows.jsonl:10"]
    prompts = [{"prompt": "1 2 3", "answer": "6"}, {"prompt": "1 " * 50, "answer": "50"}]
    data = read(
        *(tmp_path, tokenizer, prompts, "grpo"),
        max_bad_rows_percent=50,
        training={"max_completion_length": 40},
    )
    assert [bad.place for bad in data.quarantine.bad_rows] == ["rows.jsonl:2"]


def test_columns_that_nobody_reads_are_named_once_in_their_order(
    tmp_path: Path, tokenizer: Any
) -> None:
    rows = [
        {**row, "origin": "web" if n else None, "score": n if n > 1 else None, "empty": None}
        for n, row in enumerate(rows_of("pairs", 4))
    ]
    data = read(tmp_path, tokenizer, rows, "dpo")
    assert data.unused == ["origin", "score"]
    assert "data.columns_unused_too(" in data.lines()[0]
    assert "columns=origin, score" in data.lines()[0]
    prompts = [{"prompt": "a", "answer": "b", "level": 1}]
    given = read(tmp_path, tokenizer, prompts, "grpo", training={"max_completion_length": 8})
    assert given.unused == ["level"]
    assert "data.columns_unused_too(" not in given.lines()[0]  # rewards may read it


@pytest.mark.parametrize(
    ("labels", "lacking"), [([True] * 3, "bad"), ([False] * 3, "good"), ([True, False], None)]
)
def test_labels_that_are_all_the_same_are_noted(
    tmp_path: Path, tokenizer: Any, labels: list[bool], lacking: str | None
) -> None:
    rows = [{"prompt": "a", "completion": f"b{n}", "label": x} for n, x in enumerate(labels)]
    data = read(tmp_path, tokenizer, rows, "kto")
    assert data.num_good == sum(labels)
    same = f"methods.labels_all_same(kind={'good' if labels[0] else 'bad'}, lacking={lacking})"
    assert [same in note for note in data.notes] == [True] * (lacking is not None)
    assert len(data.contents()) == sum(labels)


def test_answers_that_are_one_to_the_model_are_set_aside_with_their_place(tmp_path: Path) -> None:
    """Where the tokenizer makes the same of them, or what makes the difference is cut off."""
    tokenizer: Any = train_tiny_tokenizer(pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    tokenizer.backend_tokenizer.normalizer = Lowercase()
    rows = [
        *rows_of("pairs", 3),
        {"prompt": "1", "chosen": "yes", "rejected": "YES"},
        {"prompt": "2", "chosen": "a " * 80 + "b", "rejected": "a " * 80 + "c"},
    ]
    data = read(
        *(tmp_path, tokenizer, rows, "dpo"),
        max_bad_rows_percent=90,
        over_length="keep_start",
    )
    lengths = [len(line) for line in (tmp_path / "rows.jsonl").read_bytes().splitlines(True)]
    longest = len(tokenizer("2\n" + "a " * 80 + "b")["input_ids"]) + 1  # and its end
    one, cut = "methods.answers_tokenize_equally", "methods.answers_equal_after_cut"
    found = [(bad.line, bad.reason, bad.offset, bad.detail) for bad in data.quarantine.bad_rows]
    assert found == [
        (4, "no preference", sum(lengths[:3]), f"{one}(answers=chosen and rejected)"),
        (5, "over-long", sum(lengths[:4]), f"{cut}(longest={longest}, max_length=64)"),
    ]
    assert len(data.train) == 3


def test_an_answer_that_a_row_brings_takes_nothing_of_the_length_of_a_written_one(
    tmp_path: Path, tokenizer: Any
) -> None:
    training = {"max_completion_length": 8}
    rows = [{"prompt": "1", "answer": "a " * 200}]
    data = read(tmp_path, tokenizer, rows, "grpo", training=training)
    assert (len(data.train), data.num_cut) == (1, 0)
    tail = {"prompt": "1 " * 40, "chosen": "a", "rejected": "b"}  # 64 without the 30 of GRPO
    training = {"max_completion_length": 30}
    assert len(read(tmp_path, tokenizer, [tail], "dpo", training=training).train) == 1


def test_what_becomes_of_files_splits_and_answers_is_noted(tmp_path: Path) -> None:
    tokenizer: Any = train_tiny_tokenizer(pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    tokenizer.backend_tokenizer.normalizer = Lowercase()
    folder = tmp_path / "rows"
    for name, count in (("train", 6), ("test", 2)):
        rows = [row | {"rejected": "No."} for row in rows_of("pairs", count)]
        write_rows(folder / f"{name}.jsonl", rows)
    config = DeploymentConfig(
        data={"path": str(folder), "max_length": 64, "max_bad_rows_percent": 99},
        training={"method": "dpo"},
    )
    data = read_data(config, tokenizer, tmp_path / "quarantine.jsonl")
    train_files, held_out_files = files_of(config.data)
    expected = [file.note for file in (*train_files, *held_out_files) if file.note]
    expected += about_splits(train_files, held_out_files)
    assert expected
    assert {f"note: {sentence}" for sentence in expected} <= {*data.notes}
    assert len(data.notes) > len(expected)  # the letters that the tokenizer makes small


def test_too_many_bad_rows_are_refused_and_listed(tmp_path: Path, tokenizer: Any) -> None:
    rows = [*rows_of("pairs", 8), {"prompt": "a", "chosen": "b", "rejected": "b"}]
    with pytest.raises(
        ValueError,
        match=r"data\.too_many_bad_rows.*num_bad=1.*num_rows=9.*no preference \(rows\.jsonl:9",
    ):
        read(tmp_path, tokenizer, rows, "dpo")
    [line] = (tmp_path / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(line)["line"] == 9


def test_all_answers_to_a_prompt_lie_on_one_side(tmp_path: Path, tokenizer: Any) -> None:
    rows = [row | {"rejected": f"{n}"} for row in rows_of("pairs", 30) for n in (1001, 1002)]
    data = read(tmp_path, tokenizer, rows, "dpo", validation_split=0.3)
    sides = [{row["prompt"] for row in side} for side in (data.train, data.held_out)]
    assert sides[1]
    assert not sides[0] & sides[1]
    again = read(tmp_path, tokenizer, rows, "dpo", validation_split=0.3)
    assert again.held_out == data.held_out
    few = read(tmp_path, tokenizer, rows_of("pairs", 2), "dpo", validation_split=0.01)
    assert (len(few.train), len(few.held_out)) == (1, 1)
    most = read(tmp_path, tokenizer, rows_of("pairs", 3), "dpo", validation_split=0.999)
    assert (len(most.train), len(most.held_out)) == (1, 2)
    same = [PAIR | {"chosen": f"{n}"} for n in range(4)]
    alone = read(tmp_path, tokenizer, same, "dpo", validation_split=0.5)
    assert (len(alone.train), alone.held_out) == (4, [])


@pytest.mark.parametrize("method", ["dpo", "grpo"])
def test_only_the_rows_that_are_trained_on_are_noted_as_trained_on(
    method: str, tmp_path: Path, tokenizer: Any
) -> None:
    """Of one file that is divided, and beside a file of held-out rows."""
    kind = "pairs" if method == "dpo" else "prompts"
    rows, more = rows_of(kind, 30), {"training": {"max_completion_length": 8}}

    def number_of(prompt: str) -> int:
        [row] = [row for row in rows if str(row["prompt"]).strip() == prompt.strip()]
        [number] = read(tmp_path, tokenizer, [row], method, **more).contents().tolist()
        return int(number)

    divided = read(tmp_path, tokenizer, rows, method, validation_split=0.3, **more)
    assert divided.held_out
    expected = [number_of(str(row["prompt"])) for row in divided.train]
    assert sorted(divided.contents().tolist()) == sorted(expected)
    held_out = write_rows(tmp_path / "held.jsonl", rows[20:])
    beside = read(tmp_path, tokenizer, rows[:20], method, eval_path=str(held_out), **more)
    expected = [number_of(str(row["prompt"])) for row in rows[:20]]
    assert sorted(beside.contents().tolist()) == sorted(expected)


@pytest.mark.parametrize("method", ["dpo", "kto", "reward"])
def test_reasoning_in_another_form_than_the_template_reads_reaches_trl_in_its_form(
    method: str, tmp_path: Path
) -> None:
    template = (
        "{% for m in messages %}<{{ m['role'] }}>{% if m.reasoning_content is defined %}"
        "({{ m.reasoning_content }}){% endif %}{{ m['content'].split('</think>')[-1] }}</s>"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    good, bad = "<think>Hm</think>Paris", "<think>So</think>Rome"
    answers: list[dict[str, Any]] = [{"chosen": good, "rejected": bad}]
    if method == "kto":
        answers = [{"completion": good, "label": True}, {"completion": bad, "label": False}]
    rows = [{"prompt": "Where?", **answer} for answer in answers]
    tokenizer = metaspace_tokenizer(template)
    data = read(tmp_path, tokenizer, rows, method)
    assert data.quarantine.total == 0
    written = [row[name] for row in data.train for name in rows[0] if isinstance(row[name], list)]
    texts = [tokenizer.apply_chat_template(one, tokenize=False) for one in written]
    assert ["(Hm)Paris" in "".join(texts), "(So)Rome" in "".join(texts)] == [True, True]


def test_what_the_template_leaves_out_is_noted_or_sets_a_row_aside(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sets the row aside if it would be trained on, in either answer."""
    omits = "{% for m in messages if m.role != 'system' %}"
    template = TEMPLATE.replace("{% for m in messages %}", omits)
    monkeypatch.setattr(tokenizer, "chat_template", template)
    system = {"role": "system", "content": "Be brief."}
    rows = [CHAT_PAIR, CHAT_PAIR | {"prompt": [system, USER]}]
    rows += [
        CHAT_PAIR | {n: [a | {"reasoning_content": n}]}
        for n, a in (("chosen", GOOD), ("rejected", BAD))
    ]
    data = read(tmp_path, tokenizer, rows, "dpo", max_bad_rows_percent=90)
    detail = (
        "methods.template_omits_trained_text(part=data.lost_whole("
        "what=data.part_message_reasoning(number=2), text={}))"
    )
    assert [(bad.place, bad.reason, bad.detail) for bad in data.quarantine.bad_rows] == [
        (f"rows.jsonl:{line}", "text left out", detail.format(name))
        for line, name in ((3, "chosen"), (4, "rejected"))
    ]
    assert all(bad.advice for bad in data.quarantine.bad_rows)
    [note] = data.notes
    assert note.startswith("data.never_read_by_model(kind=data.lost_system_message(), count=1,")
    assert "place=rows.jsonl:2," in note


def test_data_of_which_no_row_is_left_is_refused_with_the_reasons(
    tmp_path: Path, tokenizer: Any
) -> None:
    rows = [PAIR | {"prompt": "1 " * 80}, PAIR | {"rejected": "a"}]
    with pytest.raises(ValueError, match=r"data\.no_rows_left") as caught:
        read(tmp_path, tokenizer, rows, "dpo", max_bad_rows_percent=100)
    for part in ("rows.jsonl, reason=", "count=2", "1 over-long (rows.jsonl:1", "(rows.jsonl:2"):
        assert part in str(caught.value)
    with pytest.raises(ValueError, match=r"data\.too_many_bad_rows") as caught:
        read(tmp_path, tokenizer, rows[:1], "dpo", max_bad_rows_percent=5)
    assert "remedy=data.raise_max_length(), " in str(caught.value)  # TRL cuts no prompt
    assert f"file={tmp_path / 'quarantine.jsonl'}" in str(caught.value)
    (tmp_path / "torn.jsonl").write_text("{broken\n")
    with pytest.raises(ValueError, match=r"methods\.no_readable_row\(file=torn\.jsonl\)"):
        sample(discover(str(tmp_path / "torn.jsonl")))


def test_held_out_data_of_its_own(tmp_path: Path, tokenizer: Any) -> None:
    other = write_rows(tmp_path / "held.jsonl", rows_of("pairs", 4))
    data = read(tmp_path, tokenizer, rows_of("pairs", 6), "dpo", eval_path=str(other))
    assert (len(data.train), len(data.held_out), data.num_read) == (6, 4, 10)
    assert [row["prompt"] for row in data.held_out] == [
        f"{row['prompt']}\n" for row in rows_of("pairs", 4)
    ]
    judged = [{"prompt": "a", "completion": "b", "label": True}]
    write_rows(other, judged)
    kinds = r"held_out_kind=methods\.judged_answers\(\), train_kind=methods\.pairs\(\)\)"
    refusal = rf"methods\.held_out_kind_differs\(file=held\.jsonl, {kinds}"
    with pytest.raises(ValueError, match=refusal):
        read(tmp_path, tokenizer, rows_of("pairs", 6), "kto", eval_path=str(other))


def test_columns_of_several_kinds_are_kept_for_rewards(tmp_path: Path, tokenizer: Any) -> None:
    rows = [
        {"prompt": "a", "answer": "b", "level": 1},
        {"prompt": "c", "answer": "d", "level": "x", "tags": ["y"]},
    ]
    data = read(tmp_path, tokenizer, rows, "grpo", training={"max_completion_length": 8})
    assert data.train[0] == {"prompt": "a\n", "answer": "b", "level": 1, "tags": None}
    assert data.train[1] == {"prompt": "c\n", "answer": "d", "level": "x", "tags": ["y"]}
    assert data.notes == []
    other = write_rows(tmp_path / "held.jsonl", [{**rows[0], "place": "z"}])
    training = {"max_completion_length": 8}
    data = read(tmp_path, tokenizer, rows, "grpo", eval_path=str(other), training=training)
    assert [(row["tags"], row["place"]) for row in [*data.train, *data.held_out]] == [
        (None, None),
        (["y"], None),
        (None, "z"),
    ]


def test_options_for_all_rows_count_in_their_lengths(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", "{{ mood }}" + TEMPLATE)
    rows = [{"prompt": "1 + 1"}]
    for mood, fits in (("a", True), ("a " * 70, False)):
        settings = {"max_completion_length": 8, "method_settings": {OPTIONS: {"mood": mood}}}
        if fits:
            assert len(read(tmp_path, tokenizer, rows, "grpo", training=settings).train) == 1
            continue
        with pytest.raises(ValueError, match="over-long"):
            read(tmp_path, tokenizer, rows, "grpo", training=settings)


def test_reasoning_is_written_where_the_template_lets_it_be_learned(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each message of an answer; the other answer stays as it is."""
    reads_field = (
        "{% for m in messages %}<{{ m['role'] }}>"
        "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
        "{{ m['content'].split('</think>')[-1].lstrip('\n') }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    monkeypatch.setattr(tokenizer, "chat_template", reads_field)

    def spoken(text: str) -> dict[str, str]:
        return {"role": "assistant", "content": text}

    user = {"role": "user", "content": "More?"}
    row = {
        "prompt": "Where?",
        "chosen": [
            spoken("<think>\nHm\n</think>\n\n3"),
            user,
            spoken("<think>\nOh\n</think>\n\n4"),
        ],
        "rejected": "5",
    }
    (written,) = read(tmp_path, tokenizer, [row], "dpo", max_length=300).train
    assert written["rejected"] == [spoken("5")]
    assert written["chosen"] == [
        spoken("3") | {"reasoning_content": "Hm"},
        user,
        spoken("4") | {"reasoning_content": "Oh"},
    ]


def test_a_prompt_that_is_not_read_counts_once_for_its_row(tmp_path: Path) -> None:
    tokenizer = without_bytes()
    rows = [{"prompt": f"a \u4f60 {n}", "chosen": "b", "rejected": "c"} for n in range(3)]
    (note,) = read(tmp_path, tokenizer, rows, "dpo").notes
    assert note.startswith("data.text_without_tokens(count=3")


@pytest.mark.parametrize("template", [TEMPLATE, None])
@pytest.mark.parametrize("method", ["dpo", "reward", "kto", "grpo"])
def test_a_row_may_be_exactly_as_long_as_is_allowed(
    tmp_path: Path, method: str, template: str | None
) -> None:
    """By the tokens that TRL makes of it, on both sides of each border."""
    tokenizer = metaspace_tokenizer(template)
    row = {"prompt": "a " * 20, "chosen": "b " * 12, "rejected": "c d"}
    if method == "kto":
        row = {"prompt": row["prompt"], "completion": row["chosen"], "label": True}
    if method == "grpo":
        row = {"prompt": row["prompt"]}
    user = [{"role": "user", "content": row["prompt"]}]
    if template:
        answer = [{"role": "assistant", "content": "b " * 12}]
        prompt = tokenizer.apply_chat_template(user, add_generation_prompt=True)["input_ids"]
        whole = tokenizer.apply_chat_template(user + answer)["input_ids"]
    else:
        prompt = tokenizer(row["prompt"] + "\n")["input_ids"]
        whole = [*tokenizer(row["prompt"] + "\n" + "b " * 12)["input_ids"], 0]  # its end
    others = [{**row, "prompt": f"{n}"} for n in range(3)]

    def becomes(max_length: int, over_length: str) -> str:
        settings = {"max_length": max_length, "over_length": over_length}
        given: dict[str, Any] = {"max_bad_rows_percent": 50, **settings}
        given["training"] = {"max_completion_length": 5} if method == "grpo" else {}
        data = read(tmp_path, tokenizer, [*others, row], method, **given)
        if data.quarantine.total:
            [bad] = data.quarantine.bad_rows
            assert bad.reason == "over-long"
            return bad.detail
        return "cut" if data.num_cut else "whole"

    for over_length in ("keep_start", "quarantine"):
        if method == "grpo":
            assert becomes(len(prompt) + 5, over_length) == "whole"
            too_long = f"(prompt_tokens={len(prompt)}, reserved=5)"
            detail = f"methods.prompt_and_answer_too_long{too_long}"
            assert becomes(len(prompt) + 4, over_length) == detail
            continue
        is_kept = over_length == "keep_start" and method != "reward"
        assert becomes(len(whole), over_length) == "whole"
        for length in (len(whole) - 1, len(prompt) + 1):
            detail = f"{len(whole)} tokens, {length} allowed"
            assert becomes(length, over_length) == ("cut" if is_kept else detail)
        detail = f"{len(whole)} tokens, {len(prompt)} allowed"
        if is_kept:
            detail = f"methods.prompt_too_long(count={len(prompt)})"
        assert becomes(len(prompt), over_length) == detail


def test_texts_that_hold_their_prompt_are_noted_where_a_template_is_left_unused(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One such row among others is enough, whether it is trained on or held out."""
    chat = {"chosen": CHAT["chosen"], "rejected": CHAT["rejected"]}
    text = {"chosen": "Q: a\nA: b", "rejected": "Q: a\nA: c"}
    monkeypatch.setattr(tokenizer, "chat_template", TEMPLATE)
    for rows, is_noted in (([chat, text], True), ([chat], False)):
        notes = read(tmp_path, tokenizer, rows, "dpo").notes
        assert any("methods.texts_without_template" in note for note in notes) == is_noted
    other = write_rows(tmp_path / "held.jsonl", [text])
    notes = read(tmp_path, tokenizer, [chat], "dpo", eval_path=str(other)).notes
    assert any("methods.texts_without_template" in note for note in notes)
    monkeypatch.setattr(tokenizer, "chat_template", None)
    assert not read(tmp_path, tokenizer, [text], "dpo").notes


CHAT = {
    name: [{"role": "user", "content": "Q"}, {"role": "assistant", "content": answer}]
    for name, answer in (("chosen", "a"), ("rejected", "b"))
}


def test_held_out_rows_have_the_columns_of_the_template_that_one_of_all_has(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table takes its columns from its first row."""
    listed = "{% for t in tools or [] %}{{ t }}{% endfor %}"
    monkeypatch.setattr(tokenizer, "chat_template", listed + TEMPLATE)
    plain = [{"prompt": f"{n} + 1 =", "chosen": "a", "rejected": "b"} for n in range(3)]
    tool = {"type": "function", "function": {"name": "add", "description": "Adds."}}
    held_out: list[dict[str, object]] = [
        {**plain[0], "prompt": "8"},
        {**plain[0], "prompt": "9", "tools": [tool]},
    ]
    path = write_rows(tmp_path / "held_out.jsonl", held_out)
    settings = {"eval_path": str(path), "max_length": 500}
    data = read(tmp_path, tokenizer, plain, "dpo", **settings)
    given, none = data.held_out[1]["tools"], data.held_out[0]["tools"]
    assert (none, json.loads(given)) == (None, [tool])
    assert [row["tools"] for row in data.train] == [None] * 3


USER = {"role": "user", "content": "Say a."}
GOOD = {"role": "assistant", "content": "a"}
BAD = {"role": "assistant", "content": "b"}
PAIR = {"prompt": "Say a.", "chosen": "a", "rejected": "b"}
CHAT_PAIR = {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]}


def shape_of(method: str, *values: dict[str, Any], **settings: Any) -> MethodShape:
    rows = [Row(value, "rows.jsonl", n) for n, value in enumerate(values, 1)]
    return recognise(rows, DataConfig(path="rows.jsonl", **settings), method)


def plainly(row: MethodRow | BadRow) -> Any:
    """A row in messages, as TRL reads it with a chat template; one that cannot be used as it is."""
    if isinstance(row, BadRow):
        return row
    named = {"prompt": row.prompt, **row.answers}
    texts = {name: turns[0].text for name, turns in named.items()} if row.is_plain else {}
    return row.values | {n: [t.message() for t in turns] for n, turns in named.items()} | texts


def one(method: str, values: dict[str, Any], **settings: Any) -> Any:
    return plainly(shape_of(method, values, **settings).row(Row(values, "rows.jsonl", 1)))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (PAIR, CHAT_PAIR),
        ({"question": "Say a.", "chosen": "a", "rejected": "b"}, CHAT_PAIR),
        ({"instruction": "Say a.", "response_j": "a", "response_k": "b"}, CHAT_PAIR),
        (CHAT_PAIR, CHAT_PAIR),
        ({"chosen": [USER, GOOD], "rejected": [USER, BAD]}, CHAT_PAIR),
        # UltraFeedback: the prompt as text, and inside both conversations
        ({"prompt": "Say a.", "chosen": [USER, GOOD], "rejected": [USER, BAD]}, CHAT_PAIR),
        # LLaMA-Factory: ShareGPT with an answer each
        (
            {
                "conversations": [{"from": "human", "value": "Say a."}],
                "chosen": {"from": "gpt", "value": "a"},
                "rejected": {"from": "gpt", "value": "b"},
            },
            CHAT_PAIR,
        ),
        ({"prompt": "Say a.", "chosen": [GOOD], "rejected": [BAD]}, CHAT_PAIR),
        ({"prompt": "Say a.", "chosen": [GOOD], "rejected": "b"}, CHAT_PAIR),
        # Anthropic's: texts that begin alike
        (
            {
                "chosen": "\n\nHuman: Hi\n\nAssistant: Hello.",
                "rejected": "\n\nHuman: Hi\n\nAssistant: No.",
            },
            {
                "prompt": "\n\nHuman: Hi\n\nAssistant:",
                "chosen": " Hello.",
                "rejected": " No.",
            },
        ),
    ],
)
def test_pairs(values: dict[str, Any], expected: dict[str, Any]) -> None:
    shape = shape_of("dpo", values)
    assert shape.kind is RowKind.PAIRS
    assert plainly(shape.row(Row(values, "rows.jsonl", 1))) == expected


EMPTY = "data.value_empty(where=data.place_column(column={}))"


@pytest.mark.parametrize(
    ("values", "reason", "detail"),
    [
        (
            PAIR | {"rejected": "a"},
            "no preference",
            "methods.answers_equal(chosen=chosen, rejected=rejected)",
        ),
        (PAIR | {"chosen": None}, "empty", EMPTY.format("chosen")),
        (
            {"prompt": "Say a.", "rejected": "b"},
            "missing column",
            "data.column_missing(column=chosen)",
        ),
        (PAIR | {"chosen": " "}, "empty", EMPTY.format("chosen")),
        (
            PAIR | {"chosen": 3.5},
            "wrong type",
            "data.value_not_text(where=data.place_column(column=chosen), kind=a number",
        ),
        (PAIR | {"prompt": ""}, "empty", EMPTY.format("prompt")),
        (
            PAIR | {"chosen": [USER, GOOD]},
            "no supervised token",
            "methods.difference_not_an_answer()",
        ),
        (
            PAIR | {"chosen": [{"type": "image"}]},
            "wrong type",
            "data.value_not_text(where=data.place_column(column=chosen), kind=a list",
        ),
        (
            CHAT_PAIR | {"rejected": [USER]},
            "no supervised token",
            "methods.difference_not_an_answer()",
        ),
        (
            # the answers would begin at a place where they were not written
            PAIR | {"prompt": [USER, {"role": "assistant", "content": "It is"}]},
            "no supervised token",
            "methods.prompt_ends_with_answer(column=prompt)",
        ),
        (
            PAIR | {"prompt": "Other.", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
            "no supervised token",
            "methods.prompt_column_differs(column=prompt)",
        ),
        (CHAT_PAIR | {"prompt": [GOOD]}, "empty", "methods.prompt_column_empty(column=prompt)"),
        (
            CHAT_PAIR | {"chosen": [{"role": "wizard", "content": "a"}]},
            "wrong type",
            "data.message_role_unknown",
        ),
    ],
)
def test_a_pair_that_does_not_fit_is_set_aside(
    values: dict[str, Any], reason: str, detail: str
) -> None:
    bad = shape_of("dpo", PAIR).row(Row(values, "rows.jsonl", 7))
    assert isinstance(bad, BadRow)
    assert (bad.place, bad.reason) == ("rows.jsonl:7", reason)
    assert detail in bad.detail


@pytest.mark.parametrize(
    "prompt",
    [
        *("Say a.", " Say  a.\r\n", "Human: Say a.\n\nAssistant:", "Say", "", "  ", None, 7),
        *([USER], [USER, GOOD], [USER, BAD], json.dumps([USER]), [], "[Say a.]"),
    ],
)
def test_a_prompt_column_beside_whole_conversations(prompt: object) -> None:
    """The conversations decide; the column may say the same, or hold one of the answers, too."""
    whole = {"prompt": prompt, "chosen": [USER, GOOD], "rejected": [USER, BAD]}
    assert one("dpo", whole) == CHAT_PAIR
    if isinstance(prompt, list) and prompt:
        assert one("dpo", PAIR | {"prompt": prompt}) == CHAT_PAIR


def test_a_column_that_repeats_the_system_message_contradicts_no_conversation() -> None:
    system = {"role": "system", "content": "Be brief."}
    pair = {"chosen": [system, USER, GOOD], "rejected": [system, USER, BAD]}
    assert one("dpo", {"instruction": "Be  brief."} | pair) == one("dpo", pair)


@pytest.mark.parametrize("turns", [[USER], [USER, GOOD]])
def test_answers_at_the_end_of_prompts_alone_are_named(turns: list[object]) -> None:
    shape = shape_of("grpo", {"prompt": turns})
    assert ("methods.last_answers_left_out(" in shape.reason) is (len(turns) == 2)
    assert one("grpo", {"prompt": turns})["prompt"] == [USER]


@pytest.mark.parametrize("rejected", ["Other text", "a b "])
def test_texts_without_a_shared_prompt_are_set_aside(rejected: str) -> None:
    values = {"chosen": "a b c", "rejected": rejected}
    assert isinstance(one("dpo", values), BadRow)


def test_labels_are_truth_values_however_they_are_spelt() -> None:
    for label, expected in ((True, True), (0, False), ("True", True), ("false", False)):
        values = {"prompt": "Say a.", "completion": "a", "label": label}
        row = one("kto", values)
        assert row == {"prompt": [USER], "completion": [GOOD], "label": expected}


def test_pairs_serve_kto_and_conversations_do() -> None:
    assert one("kto", PAIR) == CHAT_PAIR
    row = one("kto", {"messages": [USER, GOOD], "label": True})
    assert row == {"prompt": [USER], "completion": [GOOD], "label": True}


def test_prompts_bring_their_answers_and_what_else_is_plain() -> None:
    kept = {"question": "1+1?", "answer": "2", "level": 3, "tags": ["x"], "about": {"a": 1}}
    values = kept | {"images": ["y"]}
    row = shape_of("grpo", values).row(Row(values, "rows.jsonl", 1))
    assert isinstance(row, MethodRow)
    assert (row.prompt[0].text, row.answers["answer"][0].text) == ("1+1?", "2")
    assert row.values == kept
    row = one("rloo", {"messages": [USER, GOOD]})
    assert (row["prompt"], row["answer"]) == ([USER], [GOOD])
    assert one("rloo", {"messages": [USER]})["prompt"] == [USER]
    row = one("distillation", {"prompt": "Say a.", "note": "x"})
    assert row == {"prompt": [USER], "note": "x"}
    row = one(
        "grpo", {"task": "Say a.", "solution": "a"}, prompt_column="task", answer_column="solution"
    )
    assert (row["prompt"], row["answer"]) == ([USER], [GOOD])


@pytest.mark.parametrize(
    ("method", "values", "sentence"),
    [
        ("dpo", {"prompt": "a", "completion": "b"}, "methods.pairs_missing(method=dpo,"),
        (
            "dpo",
            {"prompt": "a", "response_a": "b", "response_b": "c"},
            "methods.better_answer_unknown(first=response_a, second=response_b)",
        ),
        (
            "orpo",
            {"prompt": "a", "completion": "b", "label": True},
            "methods.labels_instead_of_pairs(column=label, method=orpo)",
        ),
        ("kto", {"prompt": "a", "completion": "b"}, "methods.label_column_missing("),
        (
            "kto",
            {"text": "a", "label": True},
            "methods.answer_columns_unknown(method=training.method=kto,",
        ),
        (
            "grpo",
            PAIR,
            "methods.pairs_instead_of_prompts(better=chosen, worse=rejected, method=grpo)",
        ),
        ("grpo", {"text": "a"}, "methods.prompt_column_missing(method=grpo,"),
    ],
)
def test_other_rows_are_refused_with_the_way_on(
    method: str, values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        shape_of(method, values)


CHATS = {"chosen": [USER, GOOD], "rejected": [USER, BAD]}
TEXTS = {"chosen": "Q a", "rejected": "Q b"}
JUDGED_CHAT = {"messages": [USER, GOOD], "label": True}
SILENT = {"role": "assistant", "content": " "}
SHOWN = {"role": "user", "content": [{"type": "image", "image": "a.png"}]}


@pytest.mark.parametrize(
    ("method", "shaped_by", "changed", "detail"),
    [
        ("kto", JUDGED_CHAT, {"label": "maybe"}, "label_not_boolean(column=label)"),
        ("kto", JUDGED_CHAT, {"messages": [GOOD]}, "answer_without_prompt()"),
        ("kto", JUDGED_CHAT, {"messages": [USER, GOOD, USER, SILENT]}, "answer_empty()"),
        ("grpo", {"messages": [USER, GOOD]}, {"messages": [GOOD]}, "answer_without_prompt()"),
        ("dpo", TEXTS, {"chosen": "x"}, "texts_without_shared_prompt()"),
        ("dpo", TEXTS, {"chosen": "Q b ", "rejected": "Q b c"}, "text_begins_other()"),
        ("dpo", CHATS, {"chosen": [GOOD]}, "conversations_without_shared_prompt()"),
        ("dpo", CHAT_PAIR, {"prompt": [SHOWN]}, "row_shows_image()"),
    ],
)
def test_a_row_that_does_not_fit_has_its_own_reason(
    method: str, shaped_by: dict[str, Any], changed: dict[str, Any], detail: str
) -> None:
    row = shape_of(method, shaped_by).row(Row(shaped_by | changed, "rows.jsonl", 2, offset=9))
    assert isinstance(row, BadRow)
    assert (row.detail, row.offset) == (f"methods.{detail}", 9)


def test_columns_that_are_set_are_taken_before_those_that_are_recognised() -> None:
    values = {"task": "Say a.", "more": "M", "chosen": "a", "rejected": "b", "label": True}
    shape = shape_of("dpo", values, prompt_column="task", context_column="more")
    assert shape.used == {"task", "more", "chosen", "rejected"}
    judged = shape_of("kto", values | {"prompt": "p", "said": "c"}, answer_column="said")
    assert (judged.kind, judged.used) == (RowKind.JUDGED, {"prompt", "said", "label"})
    prompts = shape_of("grpo", values, prompt_column="task")
    assert (prompts.kind, prompts.used, prompts.has_answers) == (RowKind.PROMPTS, {"task"}, False)
    assert prompts.reason.startswith("methods.no_column_answers(reason=data.recognized_prompt(")
    assert shape_of("grpo", {"prompt": "p", "answer": "a"}).has_answers
    two = JUDGED | {"is_good": False}
    judged = shape_of("kto", two)
    reason = "reason=data.recognized_pair(prompt=prompt, answer=completion), column=label)"
    assert judged.reason == f"methods.label_column_found({reason}"
    assert plainly(judged.row(Row(two, "", 1)))["label"] is True


def converted(method: str, shaped_by: dict[str, Any], values: dict[str, Any]) -> Any:
    """What a row is of data that begins with another one; of one that cannot be used the reason."""
    row = plainly(shape_of(method, shaped_by).row(Row(values, "rows.jsonl", 2)))
    return row.reason if isinstance(row, BadRow) else row


JUDGED = {"prompt": "Say a.", "completion": "a", "label": True}


@pytest.mark.parametrize(
    ("words", "label"),
    [
        ((True, 1, 1.0, "True", " yes ", "Good", "desirable"), True),
        ((False, 0, 0.0, "FALSE", "no", "bad", "undesirable"), False),
        ((None, 2, "maybe", "", "1.5"), None),
    ],
)
def test_each_word_for_a_judgement_is_one(words: tuple[Any, ...], label: bool | None) -> None:
    for word in words:
        found = converted("kto", JUDGED, JUDGED | {"label": word})
        expected = {"prompt": [USER], "completion": [GOOD], "label": label}
        assert found == ("wrong type" if label is None else expected)


@pytest.mark.parametrize("column", LABEL_COLUMNS)
def test_each_name_of_a_judgement_is_known(column: str) -> None:
    values = {"prompt": "Say a.", "completion": "a", column: "no"}
    shape = shape_of("kto", values)
    assert column in shape.used
    assert plainly(shape.row(Row(values, "", 1)))["label"] is False


def test_a_column_of_judgements_holds_them_in_half_of_its_rows() -> None:
    other = JUDGED | {"label": "neither"}
    assert shape_of("kto", JUDGED, other).kind is RowKind.JUDGED
    with pytest.raises(
        ValueError, match=r"methods\.label_values_unknown\(.*values='neither', True"
    ):
        shape_of("kto", other, JUDGED, other)
    many = [JUDGED | {"label": word} for word in ("b", "a", "a", "c", "d", "b", "a", "c", "c")]
    with pytest.raises(
        ValueError, match=r"methods\.label_values_unknown\(.*values='a', 'c', 'b'\)"
    ):
        shape_of("kto", *many)


@pytest.mark.parametrize("pair", RANKED_PAIRS)
@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_each_ranked_pair_has_the_better_answer_first(method: str, pair: tuple[str, str]) -> None:
    assert one(method, {"prompt": "Say a.", pair[0]: "a", pair[1]: "b"}) == CHAT_PAIR
    assert one(method, {pair[1]: "b", "prompt": "Say a.", pair[0]: "a"}) == CHAT_PAIR


@pytest.mark.parametrize(
    ("better", "worse", "expected"),
    [
        ("Q: a b", "Q: a c", ("Q: a", " b", " c")),
        ("Q:\na", "Q:\nb", ("Q:\n", "a", "b")),
        ("Q: apple", "Q: apply", ("Q:", " apple", " apply")),
        ("Q  a", "Q  b", ("Q", "  a", "  b")),
        ("Q a", "Q a b", ("Q", " a", " a b")),
        ("Q a ", "Q a b", "empty"),
        ("a", "b", "no supervised token"),
        (" a", " b", "no supervised token"),
    ],
)
def test_texts_part_at_the_end_of_a_word(better: str, worse: str, expected: Any) -> None:
    for first, second, names in (
        (better, worse, ("chosen", "rejected")),
        (worse, better, ("rejected", "chosen")),
    ):
        values = {"chosen": first, "rejected": second}
        found = converted("dpo", {"chosen": "Q a", "rejected": "Q b"}, values)
        if isinstance(expected, tuple):
            assert found == dict(zip(("prompt", *names), expected, strict=True))
        else:
            assert found == expected


def test_texts_that_hold_their_prompt_take_no_other_column_before_it() -> None:
    texts = {"chosen": "Q a", "rejected": "Q b", "system": "S"}
    with pytest.raises(ValueError, match=r"methods\.column_before_paired_texts.*columns='system'"):
        shape_of("dpo", texts)
    chats = {"chosen": [USER, GOOD], "rejected": [USER, BAD], "system": "S"}
    system = {"role": "system", "content": "S"}
    for rows in ((chats,), (texts, chats), (chats, texts)):  # not all of them are texts
        row = shape_of("dpo", *rows).row(Row(chats, "rows.jsonl", 1))
        assert plainly(row) == CHAT_PAIR | {"prompt": [system, USER]}


def test_what_both_conversations_begin_with_is_the_prompt() -> None:
    again = [USER, GOOD, USER]
    longer = {"chosen": [*again, GOOD], "rejected": [*again, BAD, USER, GOOD]}
    expected = {"prompt": again, "chosen": [GOOD], "rejected": [BAD, USER, GOOD]}
    assert one("dpo", longer) == expected
    found = converted("dpo", longer, {"chosen": [GOOD, USER], "rejected": [BAD, USER]})
    assert found == "no supervised token"
    shorter = {"chosen": [USER, GOOD], "rejected": [USER, GOOD, USER, BAD]}
    assert converted("dpo", longer, shorter) == "no supervised token"  # one of them says no more
    empty = [USER, {"role": "assistant", "content": " "}]
    assert isinstance(converted("dpo", longer, {"chosen": [USER, GOOD], "rejected": empty}), str)


def test_an_answer_column_that_no_row_answers_with_is_refused() -> None:
    values = {
        "prompt": "Say a.",
        "score": 3.5,
        "b": b"x",
        "nothing": None,
        "image": "y",
        "ok": True,
    }
    row = one("grpo", values)
    assert row == {"prompt": [USER], "score": 3.5, "ok": True}
    with pytest.raises(ValueError, match=r"methods\.prompt_column_missing"):
        shape_of("grpo", values, answer_column="score")
    for setting in ("prompt_column", "answer_column"):
        with pytest.raises(
            ValueError,
            match=rf"setting=data\.{setting}, reason=.*what=column, name=nothing,",
        ):
            shape_of("grpo", values, **{setting: "nothing"})
        with pytest.raises(
            ValueError,
            match=rf"setting=data\.{setting}, reason=.*what=column, name=nothing,",
        ):
            shape_of("kto", JUDGED | values, **{setting: "nothing"})


def test_prompts_alone_are_prompts() -> None:
    values = {"prompt": "Say a.", "system": "S", "note": "x"}
    shape = shape_of("grpo", values)
    assert shape.kind is RowKind.PROMPTS
    assert shape.used == {"prompt", "system"}
    system = {"role": "system", "content": "S"}
    assert one("grpo", values) == {"prompt": [system, USER]} | values | {"prompt": [system, USER]}


def test_a_prompt_ends_before_its_last_answers() -> None:
    for prompt_given, expected in (
        ([USER, GOOD], [USER]),
        ([USER, GOOD, GOOD], [USER]),
        ([GOOD, USER], [GOOD, USER]),
        ([USER, GOOD, USER, BAD], [USER, GOOD, USER]),
    ):
        assert one("dpo", CHAT_PAIR | {"prompt": prompt_given})["prompt"] == expected


def test_an_answer_may_be_a_call_alone() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [{"name": "do"}]}
    row = one("dpo", {"chosen": [USER, called], "rejected": [USER, BAD]})
    assert row == {"prompt": [USER], "chosen": [called], "rejected": [BAD]}
    assert one("kto", {"messages": [USER, called], "label": True})["completion"] == [called]


def test_what_differs_begins_with_an_answer_that_has_content() -> None:
    pair = {"chosen": [USER, GOOD], "rejected": [USER, BAD]}
    other, empty = {"role": "user", "content": "?"}, {"role": "assistant", "content": " "}
    for chosen in ([USER, other, GOOD], [USER, empty, USER, GOOD]):
        assert converted("dpo", pair, pair | {"chosen": chosen}) == "no supervised token"
    longer = {"chosen": [USER, GOOD, BAD], "rejected": [USER, GOOD, GOOD]}
    assert one("dpo", longer) == {"prompt": [USER, GOOD], "chosen": [BAD], "rejected": [GOOD]}


def test_a_row_has_its_place_and_is_a_conversation_with_each_answer() -> None:
    values = CHAT_PAIR | {"tools": [{"name": "do"}]}
    row = shape_of("dpo", values).row(Row(values, "other.jsonl", 7))
    assert isinstance(row, MethodRow)
    for name, answer in (("chosen", GOOD), ("rejected", BAD)):
        found = row.conversation(name)
        assert found.messages() == [USER, answer]
        assert (found.source, found.line, found.num_given) == ("other.jsonl", 7, 1)
        assert found.inputs == row.inputs != ""
        assert [found.is_learnt(number) for number in range(2)] == [False, True]


def test_a_picture_anywhere_sets_a_row_aside() -> None:
    image = {"type": "image", "image": "a.png"}
    shown = {"role": "user", "content": [image, {"type": "text", "text": "Say a."}]}
    for prompt_given in ([shown], [USER, GOOD, shown], [shown, GOOD, USER]):
        assert converted("dpo", CHAT_PAIR, CHAT_PAIR | {"prompt": prompt_given}) == "picture"


def test_the_columns_of_a_pair_are_used_and_named() -> None:
    with_prompt = shape_of("dpo", PAIR)
    assert with_prompt.used == {"prompt", "chosen", "rejected"}
    assert with_prompt.reason == (
        "methods.one_is_better(reason=data.recognized_prompt(column=prompt), "
        "chosen=chosen, rejected=rejected)"
    )
    inside = shape_of("dpo", {"chosen": [USER, GOOD], "rejected": [USER, BAD]})
    assert inside.used == {"chosen", "rejected"}
    assert inside.reason.startswith(
        "methods.one_is_better(reason=methods.common_beginning_is_prompt"
    )


def test_one_answered_prompt_is_enough_for_answers_to_be_read() -> None:
    answered = {"prompt": "Say a.", "answer": "a"}
    for rows in ((answered, answered | {"answer": None}), (answered | {"answer": None}, answered)):
        row = shape_of("grpo", *rows).row(Row(answered, "rows.jsonl", 1))
        assert isinstance(row, MethodRow)
        assert [*row.answers] == ["answer"]


def test_labels_of_another_case_that_are_none_are_shown_in_part() -> None:
    values = {"prompt": "a", "completion": "b", "Label": "x" * 40}
    with pytest.raises(
        ValueError, match=r"methods\.label_values_unknown\(.*name=Label, values='x{22}…"
    ):
        shape_of("kto", values)


def test_a_text_beside_messages_shares_no_prompt() -> None:
    chats = {"chosen": [USER, GOOD], "rejected": [USER, BAD]}
    for mixed in ({"chosen": "Say a. b"}, {"rejected": "Say a. b"}):
        assert converted("dpo", chats, chats | mixed) == "no supervised token"


TOOL = {"type": "function", "function": {"name": "add", "description": "Adds."}}
MOODY = "{{ mood }}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}" + TEMPLATE
CALLS = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add"}}]}


@pytest.mark.parametrize(
    ("method", "template", "row", "detail", "advice"),
    [
        ("dpo", MOODY, CHAT_PAIR | {"tools": [TOOL], OPTIONS: {"mood": "b"}}, None, ""),
        (
            "orpo",
            MOODY,
            CHAT_PAIR | {"tools": [TOOL]},
            "methods.option_not_passed(name=tools, method=ORPO)",
            "methods.move_column_into_prompt()",
        ),
        ("orpo", MOODY, CHAT_PAIR | {OPTIONS: {"mood": "b"}}, None, ""),
        (
            "grpo",
            MOODY,
            {"prompt": [USER], "completion": [GOOD], "tools": [TOOL]},
            "methods.option_not_passed(name=tools, method=GRPO)",
            "methods.move_column_into_prompt()",
        ),
        (
            "grpo",
            MOODY,
            {"prompt": [USER], "completion": [GOOD], OPTIONS: {"mood": "b"}},
            f"methods.option_not_passed(name={OPTIONS}, method=GRPO)",
            f"methods.set_options_for_all_rows(options={OPTIONS})",
        ),
        (
            "grpo",
            MOODY,
            {"prompt": [USER], "completion": [GOOD], OPTIONS: {"mood": "a"}},
            None,
            "",
        ),  # as all have it
        (
            "dpo",
            None,
            CHAT_PAIR | {"tools": [TOOL]},
            "methods.option_needs_chat_template(names=tools)",
            "data.no_chat_template()",
        ),
        (
            "dpo",
            None,
            CHAT_PAIR | {"chosen": [CALLS]},
            "methods.answer_needs_chat_template()",
            "data.no_chat_template()",
        ),
        (
            "dpo",
            None,
            CHAT_PAIR | {"rejected": [BAD, USER, GOOD]},
            "methods.answer_needs_chat_template()",
            "data.no_chat_template()",
        ),
        (
            "dpo",
            TEMPLATE.replace(
                "{% if add", "{% if messages[-1].content == 'Say a.' %}!{% endif %}{% if add"
            ),
            CHAT_PAIR,
            "methods.prompt_written_differently(where='!<assistant>' at inference, "
            "'<assistant>a</s>' in training)",
            "data.template_writing_alike()",
        ),
        (
            "dpo",
            TEMPLATE.replace("in messages %}", "in messages if m.content != 'a' %}"),
            CHAT_PAIR,
            "methods.prompt_written_differently(where='<assistant>' at inference, '' in training)",
            "data.template_writing_alike()",
        ),
    ],
)
def test_rows_with_options_that_trl_does_not_pass_to_the_template_are_skipped_with_advice(
    method: str,
    template: str | None,
    row: dict[str, Any],
    detail: str | None,
    advice: str,
    tmp_path: Path,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", template)
    training: dict[str, Any] = {}
    if method == "grpo":
        training = {"max_completion_length": 8, "method_settings": {OPTIONS: {"mood": "a"}}}
    kind = "prompts" if method == "grpo" else "pairs"
    config = DeploymentConfig(
        data={
            "path": str(write_rows(tmp_path / "rows.jsonl", [*rows_of(kind, 3), row])),
            **{"validation_split": 0.0, "max_length": 512, "max_bad_rows_percent": 90},
        },
        training={"method": method, **training},
    )
    data = read_data(config, tokenizer, tmp_path / "quarantine.jsonl")
    found = [(bad.place, bad.reason, bad.detail, bad.advice) for bad in data.quarantine.bad_rows]
    assert found == [("rows.jsonl:4", "chat template", detail, advice)] * (detail is not None)
    if detail is None and method == "dpo":
        assert json.loads(data.train[-1]["tools"]) == [TOOL]
        assert data.train[-1][OPTIONS] == {"mood": "b"}
        assert (data.train[0]["tools"], data.train[0][OPTIONS]) == (None, {})


def test_what_was_read_and_how_it_is_used_is_counted(tmp_path: Path, tokenizer: Any) -> None:
    rows = [{"prompt": f"{n}", "completion": "b", "label": n > 1} for n in range(5)]
    bad = {"prompt": "a", "completion": " ", "label": True}
    held_out = write_rows(tmp_path / "held.jsonl", rows[:2])
    given = {"eval_path": str(held_out), "max_bad_rows_percent": 50}
    lines = read(tmp_path, tokenizer, [*rows, bad], "kto", **given).lines()
    assert "methods.rows_read(count=8, reason=methods.label_column_found(" in lines[0]
    assert "methods.rows_judged(count=5, num_good=3, num_bad=2)" in lines[0]
    assert "methods.rows_held_out(count=2)" in lines[0]
    assert "methods.rows_skipped(count=1, first=rows.jsonl:6" in lines[0]
    plain = read(tmp_path, tokenizer, rows_of("pairs", 3), "dpo").lines()
    assert "methods.rows_trained(count=3)" in plain[0]
    assert "methods.rows_skipped" not in plain[0]
