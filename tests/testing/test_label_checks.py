"""What is learnt, how answers end and how prompts look, for the many ways that data is given."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.data.encoding.chat_format import (
    ANSWER,
    QUESTION,
    TemplateFormat,
    marks_without_token,
)
from infrastructure.data.encoding.tokenization import LABELS_VERSION, ConversationEncoder
from infrastructure.data.preparation.plan import template_notes
from infrastructure.data.readers.rows import Conversation
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.testing.label_checks import (
    AnswerMarks,
    check_answers,
    check_ends,
    check_labels,
    check_template,
    runs_of,
)
from infrastructure.testing.loss_checks import check_accumulation, check_isolation
from infrastructure.testing.results import CheckResult
from infrastructure.testing.subject import Subject
from tests.data.trl_masks import (
    Learnt,
    by_temper,
    cases,
    model_template,
    needs_templates,
    tokenizer_for,
    training_templates,
)
from tests.slow import slow_but
from tests.testing.check_models import MODELS, save_model_of, settings_of, trainer_of

TEXT = [{"text": f"The number {n} reversed is {str(n)[::-1]}."} for n in range(100, 140)]
CHAT: list[dict[str, Any]] = [
    {
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": f"Is {n} a number?"},
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "Which?"},
            {"role": "assistant", "content": str(n)},
        ]
    }
    for n in range(100, 140)
]
TOOLS = [
    {
        "messages": [
            {"role": "user", "content": f"{n} + 1?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"name": "add", "arguments": json.dumps({"a": n, "b": 1})}],
            },
            {"role": "tool", "name": "add", "content": str(n + 1)},
            {"role": "assistant", "content": str(n + 1), "reasoning_content": "It is one more."},
        ],
        "tools": [{"type": "function", "function": {"name": "add", "description": "Adds."}}],
    }
    for n in range(100, 140)
]
# Where nothing special follows what they mark: the old mistake changed nothing there.
WITHOUT_A_NEXT_TOKEN = ("glm4moe", "idefics3")
LAST = {"train_on": "last_answer"}
LONG = [{"prompt": "x y z " * 60 + str(n), "completion": f"answer {n}"} for n in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tiny models, with a chat template and without."""
    folder = tmp_path_factory.mktemp("models")
    save_model_of("llama", folder / "template")
    save_model_of("llama", folder / "plain", template=False)
    return folder


def subject(
    folder: Path, tmp_path: Path, model: str, rows: list[dict[str, Any]] | None, **data: Any
) -> Subject:
    settings = settings_of(tmp_path, {"name": str(folder / model)})
    settings["data"] |= {"max_length": 128, **data}
    if rows is not None:
        Path(settings["data"]["path"]).write_text("\n".join(map(json.dumps, rows)))
    return Subject(trainer_of(DeploymentConfig(**settings)))


def found(subject: Subject) -> dict[str, CheckResult]:
    checks = (check_labels, check_ends, check_answers, check_template)
    results = (check(subject) for check in checks)
    return {result.name: result for result in results}


@pytest.mark.parametrize(("num_rows", "num_examples"), [(1, 1), (40, 4)])
def test_one_example_is_checked_like_several(
    num_rows: int, num_examples: int, folder: Path, tmp_path: Path
) -> None:
    rows = [{"prompt": f"Reverse {n}", "completion": str(n)[::-1]} for n in range(num_rows)]
    data = subject(folder, tmp_path, "template", rows, validation_split=0)
    texts = {check(data).text for check in (check_isolation, check_accumulation)}
    apart = f"testing.examples_are_isolated(num_examples={num_examples}, container=one row)"
    alike = f"testing.micro_batches_keep_gradient(num_examples={num_examples})"
    assert texts == {apart, alike}


ROWS: dict[str, Any] = {"pairs": None, "text": TEXT, "chat": CHAT}
WAYS: dict[str, dict[str, Any]] = {
    "held out": {},
    "nothing held out": {"validation_split": 0},
    "all learnt": {"train_on": "all"},
    "streaming": {"streaming": True},
    "last answer": LAST,
}
EACH_ONCE = [  # the others are slow tests
    *(("template", "chat", "held out"), ("plain", "text", "nothing held out")),
    *(("plain", "chat", "all learnt"), ("template", "pairs", "streaming")),
    ("plain", "chat", "held out"),  # several answers, whose ends no template writes
    ("template", "chat", "last answer"),
]


@pytest.mark.parametrize(
    ("model", "rows", "way"),
    slow_but(EACH_ONCE, [*product(("template", "plain"), ROWS, WAYS)]),
)
def test_good_data_passes(folder: Path, tmp_path: Path, model: str, rows: str, way: str) -> None:
    data = WAYS[way]
    results = found(subject(folder, tmp_path, model, ROWS[rows], **data))
    assert {name: r.status for name, r in results.items()} == {
        "labels": "pass",
        "end of answers": "pass",
        "answers": "skipped" if data.get("train_on") == "all" else "pass",
        "prompts": "pass",
    }, results


@pytest.mark.parametrize(("beyond", "status"), [(-1, "pass"), (0, "fail"), (7, "fail")])
def test_the_largest_token_is_one_that_the_model_knows(
    beyond: int, status: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = subject(folder, tmp_path, "plain", None)
    num_tokens = given.model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    first, *others = given.candidates
    ids = first.input_ids.copy()
    ids[0] = num_tokens + beyond
    changed = [*others, replace(first, input_ids=ids)]
    monkeypatch.setattr(given, "candidates", changed)
    assert check_labels(given).status == status


@pytest.mark.parametrize(
    ("check", "change", "text"),
    [
        (check_labels, "learns the first", "first_token_trained(number=3)"),
        (check_labels, "learns nothing", "example_without_trained_tokens(number=3)"),
        (check_labels, {1: -5}, "token_out_of_range(number=3, token=-5, num_tokens=320)"),
        (check_labels, {1: 320}, "token_out_of_range(number=3, token=320, num_tokens=320)"),
        (check_answers, "learns no end", "answer_end_not_trained(example=example 3, token=</s>)"),
        (check_template, {0: 1, 1: 1}, "duplicate_bos(number=3)"),
    ],
)
def test_the_example_that_is_wrong_is_named(
    check: Any,
    change: str | dict[int, int],
    text: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = subject(folder, tmp_path, "template", None)
    first, second, third, *others = given.candidates
    ids, mask = third.input_ids.copy(), third.supervised.copy()
    if isinstance(change, dict):
        ids[[*change]] = [*change.values()]
    elif change == "learns the first":
        mask[0] = True
    else:
        mask[0 if change == "learns nothing" else np.flatnonzero(mask)[-1] :] = False
    wrong = replace(third, input_ids=ids, supervised=mask)
    monkeypatch.setattr(given, "candidates", [first, second, wrong, *others])
    result = check(given)
    assert (result.status, result.text) == ("fail", f"testing.{text}")


def test_runs_of_learnt_tokens_have_their_ends() -> None:
    for marks, runs in (
        ("0110", [(1, 3)]),
        ("1001", [(0, 1), (3, 4)]),
        ("0000", []),
        ("1111", [(0, 4)]),
    ):
        mask = np.array([mark == "1" for mark in marks])
        assert runs_of(TokenizedExample(np.arange(4, dtype=np.int32), mask)) == runs


@needs_templates
def test_an_answer_of_white_space_alone_has_nothing_wrong() -> None:
    tokenizer = tokenizer_for(training_templates()["llama3"])
    ids = np.array(tokenizer.encode("a\n", add_special_tokens=False), dtype=np.int32)
    is_space = np.array([not tokenizer.decode([token]).strip() for token in ids])
    assert is_space.any()
    assert AnswerMarks(tokenizer).wrong_in(TokenizedExample(ids, is_space), "") == ""


def test_prompts_that_were_cut_are_not_looked_for(folder: Path, tmp_path: Path) -> None:
    results = found(subject(folder, tmp_path, "template", LONG, over_length="truncate"))
    assert results["prompts"].status == "pass"
    assert "testing.question_matches" in results["prompts"].text


def test_answers_that_were_cut_are_reported(folder: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}", "completion": "y z " * (2 + 9 * (n % 2))} for n in range(40)]
    given = subject(folder, tmp_path, "plain", rows, over_length="truncate", max_length=32)
    result = check_ends(given)
    num_cut = sum(
        int(given.adapter.tokenizer.eos_token_id not in e.input_ids[1:]) for e in given.candidates
    )
    assert 8 < num_cut < 24
    cut = f"num_unfinished={num_cut}, num_answers=32, tokens='</s>'"
    assert (result.status, result.text) == ("warn", f"testing.answers_without_end({cut})")
    assert result.remedy == "testing.answers_truncated()"
    assert result.numbers == {"ended_share": 1 - num_cut / 32}
    answers = check_answers(given)
    assert answers.numbers == {"num_answers": 32, "num_without_end": num_cut}
    some = f"testing.answers_trained_some_truncated(num_answers=32, num_truncated={num_cut})"
    assert (answers.status, answers.text) == ("pass", some)
    one = next(e for e in given.candidates if not AnswerMarks(given.tokenizer).has_end(e))
    whole = [e for e in given.candidates if AnswerMarks(given.tokenizer).has_end(e)]
    for examples in ([one, whole[0]], [one]):
        given.candidates = examples
        about = f"num_answers={len(examples)}, num_truncated=1"
        assert check_answers(given).text == f"testing.answers_trained_some_truncated({about})"


def long_answers(turns: int = 1) -> list[dict[str, Any]]:
    """Conversations whose last answer is long."""
    question = {"role": "user", "content": "Go"}
    before = [question, {"role": "assistant", "content": "y"}] * (turns - 1)
    last = {"role": "assistant", "content": "y z " * 40}
    return [{"messages": [*before, question, last], "number": n} for n in range(40)]


def test_where_every_answer_was_cut_the_end_is_never_learnt(folder: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}", "completion": "y z " * 40} for n in range(40)]
    result = check_ends(subject(folder, tmp_path, "plain", rows, max_length=32))
    assert (result.status, result.numbers["ended_share"]) == ("fail", 0)
    assert result.text == "testing.every_answer_truncated(tokens='</s>', max_length=32)"
    assert "testing.fit_answer_ends" in result.remedy


@pytest.mark.parametrize(
    ("rows", "data"),
    [
        ([{"text": f"{n} " + "y z " * 40} for n in range(40)], {}),
        ([{"prompt": f"{n}", "completion": "y z " * 40} for n in range(40)], {"train_on": "all"}),
        (long_answers(2), {"max_length": 64}),
        ([{"prompt": f"{n}", "completion": "y z " * (40 if n else 2)} for n in range(40)], {}),
    ],
    ids=["plain text", "all learnt", "an answer before it ends", "one answer ends"],
)
def test_where_an_end_is_learnt_or_none_is_needed_cut_answers_only_warn(
    folder: Path, tmp_path: Path, rows: list[dict[str, Any]], data: dict[str, Any]
) -> None:
    result = check_ends(subject(folder, tmp_path, "template", rows, **{"max_length": 32, **data}))
    assert result.status == "warn", result
    assert "testing.answers_truncated" in result.remedy


def with_the_next_token(given: Any) -> Any:
    """The mistake that Temper made: what follows an answer's end is learnt, too."""

    def write(self: Any, conversation: Any) -> Any:
        written = given(self, conversation)
        spans = []
        for start, end in written.spans:
            following = self._special.match(written.text, end)
            spans.append((start, following.end() if following else end))
        return replace(written, spans=tuple(spans))

    return write


def test_a_token_after_the_end_of_an_answer_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the embedded model, whose template marks the ends of answers itself."""
    settings = settings_of(tmp_path, {"name": "embedded"})
    settings["data"] |= {"max_length": 128}
    Path(settings["data"]["path"]).write_text("\n".join(map(json.dumps, CHAT)))
    trainer = trainer_of(DeploymentConfig(**settings))
    healthy = check_answers(Subject(trainer))
    assert healthy.status == "pass", healthy
    assert trainer.identity()["labels"] == LABELS_VERSION  # what a resumed run is held against
    monkeypatch.setattr(TemplateFormat, "write", with_the_next_token(TemplateFormat.write))
    settings["cache"] = {"directory": str(tmp_path / "other")}
    result = check_answers(Subject(trainer_of(DeploymentConfig(**settings))))
    assert result.status == "fail"
    assert "testing.marks_differ_from_template" in result.text


@needs_templates
@pytest.mark.parametrize(
    ("rows", "way"),
    slow_but(
        [("chat", "held out"), ("tools", "last answer")],
        [*product(("chat", "tools"), ("held out", "last answer"))],
    ),
)
def test_a_model_whose_template_writes_history_anew(tmp_path: Path, rows: str, way: str) -> None:
    """Qwen3 as it is: trained with TRL's template, or only on last answers; asked with its own."""
    tokenizer = tokenizer_for(model_template("qwen3"))
    sizes = {**MODELS["qwen3"][1], "vocab_size": len(tokenizer), "max_position_embeddings": 1024}
    Qwen3ForCausalLM(Qwen3Config(**sizes)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    data = WAYS[way]
    conversations = {"chat": CHAT, "tools": TOOLS}[rows]
    given = subject(tmp_path, tmp_path, "model", conversations, **{"max_length": 1024, **data})
    results = found(given)
    if data:  # no history is written anew for what is learnt, so that all prompts are compared
        assert results["prompts"].numbers["num_prompts"] >= 2
    assert {name: r.status for name, r in results.items()} == {
        "labels": "pass",
        "end of answers": "pass",
        "answers": "pass",
        "prompts": "pass",
    }, results


FEW_FAMILIES = ("glm4moe", "gptoss", "llama3", "phi3_5", "qwen3_8")


@pytest.mark.parametrize(
    "family", slow_but({*FEW_FAMILIES} & {*training_templates()}, training_templates())
)
def test_every_template_of_trl_is_healthy_and_its_defect_is_seen(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tokenizer_for(training_templates()[family])
    marks = AnswerMarks(tokenizer)
    encoder = ConversationEncoder(tokenizer, max_length=1 << 20)
    assert marks.wrong_in_known(encoder) == ""
    learnt = [by_temper(encoder, case) for case in cases(12, seed=5)]
    examples = [one for one in learnt if isinstance(one, Learnt)]
    assert len(examples) >= 4
    assert [marks.wrong_in(one.example(), "") for one in examples] == [""] * len(examples)
    monkeypatch.setattr(TemplateFormat, "write", with_the_next_token(TemplateFormat.write))
    assert (marks.wrong_in_known(encoder) == "") == (family in WITHOUT_A_NEXT_TOKEN)


@needs_templates
def test_a_template_in_marks_of_another_tokenizer_is_named() -> None:
    template = model_template("qwen3")
    assert marks_without_token(template, tokenizer_for(template)) == []
    lacking = marks_without_token(template, tokenizer_for(""))
    assert lacking == ["<|im_start|>", "<|im_end|>"]


@needs_templates
def test_a_given_template_in_tags_that_the_model_lacks_is_noted_with_what_they_cost() -> None:
    template = model_template("qwen3")
    given, own = DataConfig(chat_template=template), DataConfig()
    lacking = tokenizer_for("")
    lacking.chat_template = template
    [note] = template_notes(given, lacking)
    tags = "<|im_start|>, <|im_end|>, <think>, </think>"
    assert f"data.template_tags_not_tokens(tags={tags}, num_more=" in note
    knowing, written = tokenizer_for(template), TemplateFormat(lacking)
    text = written.write_whole(Conversation((QUESTION, ANSWER))).text
    more = [len(one(text, add_special_tokens=False)["input_ids"]) for one in (lacking, knowing)]
    num_more = int(note.partition("num_more=")[2].removesuffix(")"))
    assert num_more == pytest.approx(more[0] - more[1], abs=2)  # line breaks beside them
    assert template_notes(given, knowing) == []
    assert template_notes(own, lacking) == []  # the model came with it
    lacking.chat_template = None
    assert "data.model_without_chat_template" in template_notes(own, lacking)[0]


def test_rows_that_spell_special_tokens_are_reported_and_stop_nothing(
    folder: Path, tmp_path: Path
) -> None:
    rows = [{"prompt": f"{n}", "completion": f"<s> {n} and <s>"} for n in range(40)]
    result = check_answers(subject(folder, tmp_path, "template", rows))
    assert (result.status, result.remedy) == ("warn", "testing.remove_special_tokens(num_rows=40)")


def test_prompts_are_held_against_the_template_of_the_saved_tokenizer(
    folder: Path, tmp_path: Path
) -> None:
    given = subject(folder, tmp_path, "template", CHAT)
    tokenizer = given.adapter.tokenizer
    assert check_template(given).numbers["num_prompts"] >= 1
    tokenizer.chat_template = tokenizer.chat_template.replace("<s>", "<s> ")
    result = check_template(given)
    assert result.status == "fail"
    assert "testing.prompt_differs_after" in result.text


def test_a_space_at_the_end_of_the_generation_prompt_is_named(folder: Path, tmp_path: Path) -> None:
    given = subject(folder, tmp_path, "template", CHAT)
    tokenizer = given.adapter.tokenizer
    tokenizer.chat_template = tokenizer.chat_template.replace("assistant\n", "assistant: ")
    result = check_template(given)
    assert result.status == "fail"
    assert "testing.prompt_ends_with_space" in result.text


def test_one_answer_is_counted_as_one(folder: Path, tmp_path: Path) -> None:
    row = [{"prompt": "x y", "completion": "z"}]
    results = found(subject(folder, tmp_path, "template", row, validation_split=0.0))
    assert "testing.trained_token_share(" in results["labels"].text
    assert "num_examples=1)" in results["labels"].text
    assert results["end of answers"].text.startswith("testing.answer_ends_trained")
    assert results["answers"].text == "testing.answers_trained(num_answers=1)"
