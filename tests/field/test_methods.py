"""One prompt on every route, answers that survive the tokenizer, and presets that only propose:
R3, R4, R10, R11, R14 and the parts of R15 that concern methods. Effects are token ids and rows.
"""

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.effect import noted_without_effect
from infrastructure.config.merging.presets import PRESETS
from infrastructure.config.registries import METHODS
from infrastructure.data.data_pipeline import DataPipeline, first_examples
from infrastructure.data.encoding.row_schema import with_context
from infrastructure.data.encoding.token_survival import (
    LETTERS,
    LOST,
    WHITE_SPACE,
    Survivals,
    TokenSurvival,
)
from infrastructure.data.encoding.tokenization import ConversationEncoder, Encoded
from infrastructure.data.readers.rows import Conversation, Turn
from infrastructure.evaluation import prompting
from infrastructure.training.methods.check import problems_of
from infrastructure.training.methods.method_data import MethodData, TrlRow, read_data
from infrastructure.training.methods.method_table import installed_method
from infrastructure.training.methods.rewards import given_values
from infrastructure.training.methods.trl_training import TrlTraining, carried_columns
from tests.data.builders import (
    CHATML,
    MARKED,
    byte_level_tokenizer,
    metaspace_tokenizer,
    pipeline,
    slow_tokenizer,
    write_jsonl,
)
from tests.training.methods.method_runs import methods_here

PAIRS, ALL = ("dpo", "orpo", "reward"), METHODS.built_in
THINKING = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
WITH_TOOLS = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% if mood is defined and mood is none %}none{% endif %}{{ mood }}" + CHATML
)
QUESTION: dict[str, Any] = {
    "system": "Be brief.",
    "history": [["Are you there?", "Yes."]],
    "question": "What is the capital?",
    "context": "a",  # its one letter stands in the question, too
    "choices": ["Paris", "Rome"],
}
PROMPT_TEXTS = (
    "Be brief.",
    "Are you there?",
    "Yes.",
    "What is the capital?\n\na\n\nA. Paris\nB. Rome",
)
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds."}}

# Before datasets 4.7 objects of one column have the keys of all of them.
HOLDS_MIXED = Version(version("datasets")) >= Version("4.7")


def row_for(method: str, right: str = "B", wrong: str = "A", **values: Any) -> dict[str, Any]:
    """A row with an answer as a method reads it."""
    if method in PAIRS:
        return {**values, "chosen": right, "rejected": wrong}
    label = {"label": True} if method == "kto" else {}
    return {**values, "answer": right, **label}


def read(
    folder: Path, tokenizer: Any, method: str, rows: list[dict[str, Any]], **data: Any
) -> MethodData:
    training = {"method": method, "max_completion_length": 8} | data.pop("training", {})
    config = DeploymentConfig(
        data={
            "path": str(write_jsonl(folder / f"{method}.jsonl", rows)),
            "validation_split": 0.0,
            "max_length": 200,
            **data,
        },
        training=training,
    )
    return read_data(config, tokenizer, folder / "quarantine.jsonl")


def prompt_ids(tokenizer: Any, row: dict[str, Any]) -> list[int]:
    """As TRL asks the model."""
    if isinstance(row["prompt"], str):
        return list(tokenizer(row["prompt"])["input_ids"])
    options = row.get("chat_template_kwargs", {})
    tools = json.loads(row["tools"]) if row.get("tools") else None
    return list(
        tokenizer.apply_chat_template(
            row["prompt"], add_generation_prompt=True, return_dict=False, tools=tools, **options
        )
    )


@pytest.mark.parametrize("template", [CHATML, None])
@pytest.mark.parametrize("method", ALL)
def test_r10_every_method_has_the_prompt_of_the_own_loop(
    method: str, template: str | None, tmp_path: Path
) -> None:
    tokenizer = byte_level_tokenizer(template)
    rows = [row_for(method, **QUESTION)]
    (row,) = read(tmp_path, tokenizer, method, rows).train
    own = pipeline(
        write_jsonl(tmp_path / "own.jsonl", [{**QUESTION, "answer": "B"}]),
        tmp_path / "cache",
        tokenizer,
        validation_split=0.0,
        accept_small_data=True,
    )
    (example,) = first_examples(own, 1)
    prompted = prompt_ids(tokenizer, row)
    assert prompted == example.example.input_ids[: len(prompted)].tolist()
    assert example.example.supervised[len(prompted)]
    text = tokenizer.decode(prompted)
    assert [text.count(part) for part in PROMPT_TEXTS] == [1] * len(PROMPT_TEXTS)
    if method in METHODS.built_in and METHODS.get(method).generates:
        assert row["answer"] == "B. Rome"
        (alone,) = read(tmp_path, tokenizer, method, [QUESTION]).train
        assert prompt_ids(tokenizer, alone) == prompted
    else:
        right = row["chosen" if method in PAIRS else "completion"]
        assert (right if template is None else right[0]["content"]) == "B. Rome"


@pytest.mark.parametrize("method", ["dpo", "grpo"])
def test_r10_messages_and_texts_with_other_columns_become_one_prompt(
    method: str, tmp_path: Path
) -> None:
    tokenizer, beside = byte_level_tokenizer(CHATML), {"system": "Be brief.", "context": "b"}
    user = {"role": "user", "content": "Say b."}
    prompts: list[dict[str, Any]] = [
        {"prompt": "Say b.", **beside},
        {"prompt": [user], **beside},
        {"prompt": [{"role": "system", "content": "Be brief."}, user], **beside},
        {"instruction": "Say b.", "input": "b", "system_prompt": "Be brief."},
    ]
    ids = [
        prompt_ids(tokenizer, read(tmp_path, tokenizer, method, [row_for(method, **one)]).train[0])
        for one in prompts
    ]
    assert ids == ids[:1] * len(ids)
    assert tokenizer.decode(ids[0]).count("Say b.\n\nb<|im_end|>") == 1
    if method == "dpo":
        inside: dict[str, Any] = {
            "chosen": [user, {"role": "assistant", "content": "B"}],
            "system": "Be brief.",
        }
        inside["rejected"] = [user, {"role": "assistant", "content": "A"}]
        (row,) = read(tmp_path, tokenizer, method, [inside]).train
        assert row["prompt"] == [{"role": "system", "content": "Be brief."}, user]


def test_r10_held_out_questions_and_typed_ones_are_the_same_prompt(
    tmp_path: Path, saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in saved_llama.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "chat_template.jinja").write_text(CHATML)
    prompted: list[list[int]] = []

    def generate(_: Any, __: Any, prompts: Any, *___: Any, **____: Any) -> list[Any]:
        prompted.extend(prompt.prompt_ids for prompt in prompts)
        return []

    monkeypatch.setattr(prompting, "generate_answers", generate)
    answerer = prompting.Answerer(folder, 4, "cpu")
    answerer.answers([with_context("What is the capital?", "a")], "Be brief.")
    row = {"system": "Be brief.", "question": "What is the capital?", "context": "a"}
    tokenizer = answerer._tokenizer
    rows = write_jsonl(tmp_path / "rows.jsonl", [row | {"answer": text} for text in "xy"])
    data = pipeline(rows, tmp_path / "cache", tokenizer, validation_split=0.5)
    (question,) = data.questions()
    (trained,) = read(tmp_path, tokenizer, "dpo", [row_for("dpo", **row)]).train
    assert (
        prompted
        == [
            question.prompt_ids,
        ]
        == [prompt_ids(tokenizer, trained)]
    )


def table_of(datasets: Any, rows: list[TrlRow]) -> Any:
    """The table that a Trainer is given of these rows."""
    training: Any = SimpleNamespace(carried=carried_columns(rows))
    return TrlTraining._dataset(training, datasets, rows)


def test_r10_tools_and_options_reach_the_trainer_as_they_are(
    tmp_path: Path, saved_llama: Path
) -> None:
    import datasets

    tokenizer = byte_level_tokenizer(WITH_TOOLS)
    rows = [
        row_for("dpo", question="1?", tools=[TOOL], chat_template_kwargs={"mood": "calm"}),
        row_for("dpo", question="2?", tools=None, chat_template_kwargs={"thought": 1}),
        row_for("dpo", question="3?"),
    ]
    written = read(tmp_path, tokenizer, "dpo", rows).train
    if not HOLDS_MIXED:
        with pytest.raises(ValueError, match="datasets"):
            table_of(datasets, written)
        return
    table = table_of(datasets, written)
    texts = [tokenizer.decode(prompt_ids(tokenizer, row)) for row in table]
    assert ["Adds." in text for text in texts] == [True, False, False]
    assert texts[0].count("calm") == 1
    assert not any("none" in text for text in texts)
    calls = [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": n, "arguments": a}}],
        }
        for n, a in (("add", {"a": 1}), ("say", {"text": "x"}))
    ]
    several = [
        {"prompt": "p", "chosen": [one], "rejected": [two]} for one, two in (calls, calls[::-1])
    ]
    several += [{"prompt": "p", "chosen": "c", "rejected": "d"}]
    template = CHATML.replace(
        "{{ m['content'] }}", "{{ m['content'] }}{{ (m.tool_calls or []) | tojson }}"
    )
    kept = read(tmp_path, byte_level_tokenizer(template), "dpo", several).train
    assert [*table_of(datasets, kept)] == kept


@pytest.mark.parametrize("method", ["orpo", "grpo", "rloo", "distillation"])
def test_r10_tools_that_trl_would_drop_set_the_row_aside(method: str, tmp_path: Path) -> None:
    rows = [row_for(method, question=f"{n}?") for n in range(30)]
    data = read(
        tmp_path, byte_level_tokenizer(WITH_TOOLS), method, [*rows, rows[0] | {"tools": [TOOL]}]
    )
    assert len(data.train) == 30
    assert [bad.line for bad in data.quarantine.bad_rows] == [31] * (data.quarantine.total > 0)
    tooled = [row | {"tools": [TOOL]} for row in rows]
    with pytest.raises(ValueError, match="tools"):
        read(tmp_path, byte_level_tokenizer(WITH_TOOLS), method, tooled)


def test_r10_options_of_a_row_are_those_of_the_trainer_or_refused(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "chat_template_kwargs": {"mood": "calm"}} for n in range(3)]
    settings = {"method_settings": {"chat_template_kwargs": {"mood": "calm"}}}
    tokenizer = byte_level_tokenizer(WITH_TOOLS)
    assert len(read(tmp_path, tokenizer, "grpo", rows, training=settings).train) == 3
    with pytest.raises(ValueError, match="chat_template_kwargs"):
        read(tmp_path, tokenizer, "grpo", rows)


def test_r10_texts_that_hold_their_prompt_have_no_place_for_a_system_message(
    tmp_path: Path,
) -> None:
    row = {"chosen": "Q: a\nA: b", "rejected": "Q: a\nA: c", "system": "Be brief."}
    with pytest.raises(ValueError, match="system"):
        read(tmp_path, byte_level_tokenizer(CHATML), "dpo", [row])


# R3: a context is written whatever its letters are.


@pytest.mark.parametrize("context", ["b", "alphabet", "Give the next letter of the alphabet."])
def test_r3_a_context_that_stands_in_the_question_is_written(context: str, tmp_path: Path) -> None:
    row = {"instruction": "Give the next letter of the alphabet.", "input": context, "output": "c"}
    data = pipeline(
        write_jsonl(tmp_path / "rows.jsonl", [row]),
        tmp_path / "cache",
        validation_split=0.0,
        accept_small_data=True,
    )
    (example,) = first_examples(data, 1)
    text = str(data.tokenizer.decode(example.example.input_ids))
    assert text.startswith(f"Give the next letter of the alphabet.\n\n{context}\nc")
    assert with_context(row["instruction"], context).endswith(f"\n\n{context}")
    assert with_context("Q", " ") == with_context("Q", None) == "Q"


@pytest.mark.parametrize("method", ["sft", "dpo", "kto"])
def test_r3_what_belongs_to_few_rows_is_written_in_those(method: str, tmp_path: Path) -> None:
    rows = [row_for(method, question=f"{n}?") for n in range(9)]
    rows[4] |= {"input": "b", "system": "Be brief."}
    if method == "sft":
        data = prepared(tmp_path, byte_level_tokenizer(), rows)
        text = str(data.tokenizer.decode(data.examples(range(9))[4].input_ids))
    else:
        text = str(read(tmp_path, byte_level_tokenizer(), method, rows).train[4]["prompt"])
    assert text.startswith("Be brief.\n4?\n\nb\n")


# R11: an answer is learned where asking puts it.


@pytest.mark.parametrize("method", ["dpo", "orpo", "kto", "reward"])
def test_r11_answers_after_another_prompt_are_set_aside(method: str, tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer(THINKING)
    plain = row_for(method, "Paris", "Rome", question="Where?")
    thought = row_for(
        method, "<think>\nHm\n</think>\nParis", "<think>\n</think>Rome", question="2?"
    )
    encoder = ConversationEncoder(tokenizer, max_length=100)
    turns = [(Turn("user", "2?"), Turn("assistant", text)) for text in ("Paris", "<think>\nHm")]
    of_own_loop = [isinstance(one, Encoded) for one in encoder.encode([*map(Conversation, turns)])]
    assert of_own_loop == [False, True]
    data = read(tmp_path, tokenizer, method, [thought] * 40 + [plain])
    assert (len(data.train), [bad.line for bad in data.quarantine.bad_rows]) == (40, [41])
    with pytest.raises(ValueError, match=r"num_bad=10.*prompt_written_differently.*<think>"):
        read(tmp_path, tokenizer, method, [plain] * 10)
    assert len(read(tmp_path, byte_level_tokenizer(CHATML), method, [plain] * 10).train) == 10


def test_r11_prompts_alone_are_used(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer(THINKING)
    (row,) = read(tmp_path, tokenizer, "grpo", [{"question": "Where?", "answer": "Paris"}]).train
    assert tokenizer.decode(prompt_ids(tokenizer, row)).endswith("<think>\n")


# R4: what is learned survives the tokenizer.

LATIN = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:;?!'()-"]
SPECIAL = ["<unk>", "<s>", "</s>"]
PLAIN_ANSWERS = [
    "Paris.",
    "The sum is 42.",
    "I do not know, it's not there (yet)!",
    "a - b",
    "x  y",
]


def wrapped(tokenizer: Tokenizer, has_unknown: bool = True) -> Any:
    named = {"unk_token": "<unk>"} if has_unknown else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", **named
    )


def without_bytes(has_unknown: bool = True) -> Any:
    """As SentencePiece's without byte fallback: spaces become marks, nothing else is known."""
    model = models.BPE(unk_token="<unk>" if has_unknown else None, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=SPECIAL, initial_alphabet=LATIN, show_progress=False
    )
    tokenizer.train_from_iterator(PLAIN_ANSWERS, trainer)
    return wrapped(tokenizer, has_unknown)


def with_normalizer(normalizer: Any) -> Any:
    tokenizer = byte_level_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizer
    return tokenizer


def word_pieces(is_lower: bool = False) -> Any:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    if is_lower:
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=LATIN, show_progress=False
    )
    tokenizer.train_from_iterator([*PLAIN_ANSWERS, " ".join(LATIN)], trainer)
    return wrapped(tokenizer)


def whole_words() -> Any:
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(PLAIN_ANSWERS, trainer)
    return wrapped(tokenizer)


def like_t5() -> Any:
    """Unigram with a mark at the beginning, and end tokens by the tokenizer."""
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), *((c, -3.0) for c in ["▁", *LATIN])], 0))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(pattern=_pattern(" {2,}"), content=" ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens(SPECIAL)
    return wrapped(tokenizer)


def _pattern(text: str) -> Any:
    from tokenizers import Regex

    return Regex(text)


def kinds(tokenizer: Any, *texts: str) -> list[str]:
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return [one.kind for one in TokenSurvival(tokenizer).compare([[t] for t in texts], ids)]


@pytest.mark.parametrize(
    "tokenizer",
    [
        byte_level_tokenizer(),
        byte_level_tokenizer(unk_token="<|endoftext|>", clean_up_tokenization_spaces=True),
        metaspace_tokenizer(),
        without_bytes(),
        with_normalizer(normalizers.NFC()),
        word_pieces(),
        whole_words(),
        like_t5(),
        slow_tokenizer(),
    ],
    ids=lambda one: type(one).__name__,
)
def test_r4_healthy_tokenizers_and_answers_raise_no_alarm(tokenizer: Any) -> None:
    assert kinds(tokenizer, *PLAIN_ANSWERS[:4]) == [""] * 4


@pytest.mark.parametrize(
    "text", ["你好, Jörg\n\n\tx  y", "e\u0301", "👩\u200d👧", " a", "a</s>b", "\u200b"]
)
def test_r4_tokenizers_of_bytes_keep_every_text(text: str) -> None:
    assert kinds(byte_level_tokenizer(), text) == kinds(slow_tokenizer(), text) == [""]
    assert kinds(with_normalizer(normalizers.NFC()), text) == [""]


@pytest.mark.parametrize(
    ("tokenizer", "text", "kind"),
    [
        (without_bytes(), "你好", LOST),
        (without_bytes(), "a = {b}", LOST),
        (without_bytes(has_unknown=False), "你好", LOST),
        (without_bytes(has_unknown=False), "a{b", LOST),
        (word_pieces(), "Jörg", LOST),
        (whole_words(), "Berlin.", LOST),
        (word_pieces(), "The sum\nis 42.", WHITE_SPACE),
        (like_t5(), "x  y", WHITE_SPACE),
        (word_pieces(is_lower=True), "The Sum", LETTERS),
        (with_normalizer(normalizers.Lowercase()), "Paris", LETTERS),
        (with_normalizer(normalizers.NFKC()), "x² ﬁ", LETTERS),
        (
            with_normalizer(normalizers.BertNormalizer(lowercase=False, strip_accents=True)),
            "é",
            LETTERS,
        ),
        (with_normalizer(normalizers.Replace("\n", " ")), "a\nb", WHITE_SPACE),
        (with_normalizer(normalizers.Replace("b", "")), "a b", LOST),
    ],
)
def test_r4_what_a_tokenizer_changes_is_named(tokenizer: Any, text: str, kind: str) -> None:
    assert kinds(tokenizer, text) == [kind]


def rows_of(*answers: str) -> list[dict[str, str]]:
    return [{"question": f"q {n}?", "answer": answer} for n, answer in enumerate(answers)]


def prepared(folder: Path, tokenizer: Any, rows: list[Any], **settings: Any) -> DataPipeline:
    path = write_jsonl(folder / "rows.jsonl", rows)
    return pipeline(path, folder / "cache", tokenizer, validation_split=0.0, **settings)


def test_r4_answers_that_are_lost_are_set_aside_and_refused_above_one_in_a_hundred(
    tmp_path: Path,
) -> None:
    tokenizer = without_bytes()
    rows = rows_of(*["a"] * 99, "你", "b")
    report = prepared(tmp_path, tokenizer, rows).report
    assert (report.num_train, report.quarantine.total) == (100, 1)
    assert report.quarantine.bad_rows[0].line == 100
    with pytest.raises(ValueError, match=r"data\.too_many_bad_rows\(num_bad=2, num_rows=101,"):
        prepared(tmp_path, tokenizer, [*rows[:-1], {"question": "q", "answer": "好"}]).prepare()
    assert (
        prepared(tmp_path, tokenizer, rows_of("a", "你"), max_bad_rows_percent=60).report.num_train
        == 1
    )


def test_r4_the_same_holds_for_methods(tmp_path: Path) -> None:
    tokenizer = without_bytes()
    rows = [row_for("dpo", "a", "b", question=f"{n}?") for n in range(200)]
    bad = [row_for("dpo", "a", "你", question="x?"), row_for("dpo", "你", "好", question="x?")]
    data = read(tmp_path, tokenizer, "dpo", [*rows, bad[0]])
    assert (len(data.train), data.quarantine.total) == (200, 1)
    with pytest.raises(ValueError, match=r"data\.too_many_bad_rows\(num_bad=1, num_rows=51,"):
        read(tmp_path, tokenizer, "dpo", [*rows[:50], bad[0]])
    lower = with_normalizer(normalizers.Lowercase())
    data = read(tmp_path, lower, "dpo", [*rows, row_for("dpo", "Yes", "yes", question="x?")])
    assert [one.reason for one in data.quarantine.bad_rows] == ["no preference"]
    with pytest.raises(ValueError, match=r"answers_equal_to_tokenizer\(num_equal=18,.*text=Yes"):
        read(tmp_path, lower, "kto", [row_for("kto", t, question="x?") for t in ("Yes", "yes") * 9])


def test_r4_changes_are_counted_with_an_example(tmp_path: Path) -> None:
    lower = with_normalizer(normalizers.Lowercase())
    report = prepared(tmp_path, lower, rows_of("Paris", "rome", "Oslo", "a\nb")).report
    survivals = Survivals.from_json(report.survivals)
    assert (survivals.rows, survivals.num_equal) == ({LETTERS: 2}, 0)
    assert survivals.firsts[LETTERS][0] == "rows.jsonl:1"
    for is_verbose in (False, True):
        assert any("Paris" in line and "paris" in line for line in report.lines(is_verbose))
    healthy = prepared(tmp_path, byte_level_tokenizer(), rows_of("Paris", "rome")).report
    assert Survivals.from_json(healthy.survivals).lines() == []


def test_r4_a_change_is_shown_where_more_is_read_back_than_was_given() -> None:
    tokenizer = with_normalizer(normalizers.Replace("  ", " "))
    ids = tokenizer("a  b<|im_end|>")["input_ids"]
    [survival] = TokenSurvival(tokenizer).compare([["a  b"]], [ids])
    assert survival.kind == WHITE_SPACE
    assert survival.example


def test_r4_the_example_is_of_the_change_and_not_of_single_spaces(tmp_path: Path) -> None:
    both = normalizers.Sequence([normalizers.Replace(" ", ""), normalizers.Lowercase()])
    answer = "in the middle of a long and quiet valley of the south lies Paris"
    report = prepared(tmp_path, with_normalizer(both), rows_of(answer)).report
    _, example = Survivals.from_json(report.survivals).firsts[LETTERS]
    assert "Paris" in example
    assert "paris" in example


@pytest.mark.parametrize(
    ("answers", "num_equal"),
    [
        (["US", "us"], 2),
        (["us", "US", "us"], 3),
        (["us", "Us", "US", "no"], 3),
        (["US", "US", "no"], 0),
        (["Us a", "No", "yes"], 0),
    ],
)
def test_r4_different_answers_that_become_equal_are_refused(
    answers: list[str], num_equal: int, tmp_path: Path
) -> None:
    lower = with_normalizer(normalizers.Lowercase())
    accepted = prepared(tmp_path, lower, rows_of(*answers), max_bad_rows_percent=100.0).report
    assert Survivals.from_json(accepted.survivals).num_equal == num_equal
    if num_equal:
        numbers = rf"num_equal={num_equal}, num_rows={len(answers)},"
        with pytest.raises(ValueError, match=rf"answers_equal_to_tokenizer\({numbers}"):
            prepared(tmp_path, lower, rows_of(*answers)).prepare()
    else:
        prepared(tmp_path, lower, rows_of(*answers)).prepare()


@pytest.mark.parametrize("template", [None, CHATML, MARKED])
@pytest.mark.parametrize("train_on", ["answers", "last_answer", "all"])
def test_r4_what_is_only_read_is_no_loss(
    template: str | None, train_on: str, tmp_path: Path
) -> None:
    lower = with_normalizer(normalizers.Lowercase())
    lower.chat_template = template
    turns = [
        Turn("user", "HI"),
        Turn("assistant", "yes"),
        Turn("user", "SO"),
        Turn("assistant", "no"),
    ]
    encoder = ConversationEncoder(lower, max_length=200, train_on=train_on)
    (encoded,) = encoder.encode([Conversation(tuple(turns))])
    assert isinstance(encoded, Encoded)
    is_all = train_on == "all" and template is not None
    assert encoded.survival.kind == (LETTERS if is_all else "")
    turns[1] = Turn("assistant", "Yes")
    (encoded,) = encoder.encode([Conversation(tuple(turns))])
    assert isinstance(encoded, Encoded)
    assert encoded.survival.kind == ("" if train_on == "last_answer" else LETTERS)


# R2 and R10: what a template leaves out of rows of TRL's methods.

PASSES_SYSTEM_OVER = CHATML.replace(
    "{% for m in messages %}", "{% for m in messages if m['role'] != 'system' %}"
)
CUTS_THOUGHTS = CHATML.replace("m['content'] }}", "m['content'].split('</think>')[-1] }}")


@pytest.mark.parametrize("method", ALL)
def test_r2_text_left_out_of_a_prompt_is_counted(method: str, tmp_path: Path) -> None:
    rows = [row_for(method, question=f"{n}?", system="Be brief.") for n in range(3)]
    if method == "kto":
        rows[1]["label"] = False
    notes = read(tmp_path, byte_level_tokenizer(PASSES_SYSTEM_OVER), method, rows).notes
    [note] = notes
    assert note.startswith("data.never_read_by_model(")
    assert "count=3, " in note
    assert "text=Be brief.)" in note
    assert read(tmp_path, byte_level_tokenizer(CHATML), method, rows).notes == []


@pytest.mark.parametrize("method", ["dpo", "orpo", "kto", "reward"])
def test_r2_what_a_template_leaves_out_of_an_answer_is_not_trained_on(
    method: str, tmp_path: Path
) -> None:
    rows = [row_for(method, f"{n}", "no", question=f"{n}?") for n in range(200)]
    bad = row_for(method, "<think>Hm</think>Paris", "Rome", question="Where?")
    data = read(tmp_path, byte_level_tokenizer(CUTS_THOUGHTS), method, [*rows, bad])
    assert [one.line for one in data.quarantine.bad_rows] == [201]
    with pytest.raises(ValueError, match="Hm"):
        read(tmp_path, byte_level_tokenizer(CUTS_THOUGHTS), method, [*rows[:50], bad])


# R14: a preset proposes.


def _problems(config: DeploymentConfig) -> list[str]:
    method = config.training.method
    of_trl = [] if method == "sft" else problems_of(config, installed_method(method))
    return [*config.problems(), *of_trl]


def _combinations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for preset in PRESETS:
        for method in ("sft", *methods_here()):
            for model in ({}, {"name": "some/model"}):
                yield preset, method, model


@pytest.mark.parametrize(("preset", "method", "model"), [*_combinations()])
def test_r14_a_preset_sets_only_what_applies(
    preset: str, method: str, model: dict[str, Any]
) -> None:
    given = {"model": model, "training": {"method": method}}
    config = DeploymentConfig(preset=preset, **given)
    assert _problems(config) == []
    assert [*noted_without_effect(config, config.source)] == []
    kept = [k for k, s in config.sources().items() if s.layer == "preset"]
    assert "training.max_steps" in kept or preset != "quick"
    assert len(kept) >= len(PRESETS[preset].settings) - 7
    if method == "sft" and not model:
        assert {*kept} >= {k for k in PRESETS[preset].settings if k in config.present_keys()}


@pytest.mark.parametrize(
    ("preset", "given"),
    [
        ("thorough", {"training": {"strategy": "curriculum"}}),
        ("small_memory", {"model": {"name": "some/model", "quantization_aware": "int8-int4"}}),
    ],
)
def test_r14_a_preset_gives_way_to_what_it_would_contradict(
    preset: str, given: dict[str, Any]
) -> None:
    before = len(DeploymentConfig(**given).problems())
    assert len(DeploymentConfig(preset=preset, **given).problems()) == before


def test_r14_what_somebody_gives_is_still_refused() -> None:
    config = DeploymentConfig(
        preset="ci",
        model={"name": "some/model", "embedded": {"hidden_size": 64}},
        training={"method": "dpo", "validation_prompts": 9},
    )
    assert sorted(text.split(",")[0] for text in _problems(config)) == [
        "config.setting_without_effect(setting=model.embedded.hidden_size=64",
        "methods.setting_not_supported(setting=training.validation_prompts=9",
    ]


def test_r14_the_same_holds_after_a_change() -> None:
    from infrastructure.config.merging.precedence import GivenValue, Layer, Source

    source = Source(Layer.KEYWORD, "keyword model.name")
    changed = DeploymentConfig(preset="ci").changed(
        [GivenValue("model.name", "some/model", source)]
    )
    assert changed.problems() == []
    assert changed.training.max_steps == PRESETS["ci"].settings["training.max_steps"]


# R15: sentences that fit.


def with_bos() -> Any:
    tokenizer = byte_level_tokenizer(bos_token="<s>", eos_token="</s>")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    return tokenizer


def test_r15_a_text_with_bos_and_eos_of_its_own_gets_no_others(tmp_path: Path) -> None:
    tokenizer = with_bos()
    texts = ["<s>Anna has apples.</s>", "Anna has apples.", "Paris is a capital.</s>"]
    data = prepared(tmp_path, tokenizer, [{"text": text} for text in texts])
    ids = [list(example.input_ids) for example in data.examples(range(3))]
    assert ids[0] == ids[1]
    for one in ids:
        assert one.count(tokenizer.bos_token_id) == one.count(tokenizer.eos_token_id) == 1


def test_r15_a_prompt_with_bos_gets_no_other_from_trl(tmp_path: Path) -> None:
    tokenizer = with_bos()
    rows = [row_for("dpo", question=f"{start}What is {n}?") for n, start in enumerate(("", "<s>"))]
    for row in read(tmp_path, tokenizer, "dpo", rows).train:
        assert prompt_ids(tokenizer, row).count(tokenizer.bos_token_id) == 1


def test_r15_a_column_tools_of_words_is_another_column(tmp_path: Path) -> None:
    rows = [row | {"tools": "hammer, saw"} for row in rows_of("a", "b", "c")]
    assert prepared(tmp_path, byte_level_tokenizer(), rows).report.num_train == 3
    assert len(read(tmp_path, byte_level_tokenizer(), "grpo", rows).train) == 3
    lists = [row | {"tools": ["hammer"]} for row in rows]
    assert prepared(tmp_path, byte_level_tokenizer(), lists).report.num_train == 3


@pytest.mark.parametrize(
    ("good", "bad"),
    [(1.0, 0.0), ("1.0", "0.0"), ("yes", "No"), ("Good", "bad"), (True, False), (1, 0)],
)
def test_r15_labels_of_kto(good: Any, bad: Any, tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "completion": "a", "label": (bad, good)[n % 2]} for n in range(6)]
    written = read(tmp_path, byte_level_tokenizer(), "kto", rows).train
    assert [row["label"] for row in written] == [False, True] * 3


def test_r15_labels_that_are_none_are_shown(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "completion": "a", "label": n % 5 + 2} for n in range(6)]
    with pytest.raises(ValueError, match=r"methods\.label_values_unknown\(.*values=2, 3, 4"):
        read(tmp_path, byte_level_tokenizer(), "kto", rows)
    rows = [row | {"label": True} for row in rows * 10]
    rows[3]["label"] = None
    data = read(tmp_path, byte_level_tokenizer(), "kto", rows)
    assert [bad.line for bad in data.quarantine.bad_rows] == [4]


def test_f6_lists_and_objects_reach_the_rewards(tmp_path: Path) -> None:
    import datasets

    rows = [
        {"prompt": f"{n}?", "tests": [{"in": n, "out": str(n)}], "meta": {f"k{n}": n}}
        for n in range(3)
    ]
    written = read(tmp_path, byte_level_tokenizer(), "grpo", rows).train
    given: list[Any] = []

    def reward(tests: Any, meta: Any, **_: Any) -> list[float]:
        given.extend(zip(tests, meta, strict=True))
        return [0.0] * len(tests)

    table = table_of(datasets, written)
    columns = {name: [row[name] for row in table] for name in table.column_names}
    given_values(reward, carried_columns(written))(**columns)
    assert given == [(row["tests"], row["meta"]) for row in rows]


def test_r4_two_equal_answers_are_two() -> None:
    tokenizer = byte_level_tokenizer()
    once, twice = ([*tokenizer("no" * n, add_special_tokens=False)["input_ids"]] for n in (1, 2))
    found = TokenSurvival(tokenizer).compare([["no", "no"]] * 2, [once, twice])
    assert [one.kind for one in found] == [LOST, ""]
