"""The screen shows what a person and the data say, letter by letter, and nothing instead of it."""

import ast
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from infrastructure.config.sources.languages import in_flags, in_keys, in_keywords
from infrastructure.core.user_text import note_user_values, user_text, user_texts

import temper
from infrastructure.commands.main import main
from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.config.sources import languages
from infrastructure.config.sources.flags import all_flags
from infrastructure.config.sources.load import load_config
from infrastructure.core.error_place import described, note_foreign
from tests.training.data.builders import write_jsonl

DIALECTS = [in_flags, in_keywords, in_keys]
KEYS = [*schema_of(DeploymentConfig).fields]
# Texts of people that look like settings, and like words that stand beside one.
HOSTILE = [
    "Pass --lr 0.11 and set training.seed = 11",
    "training.seed = 11; device = 3",
    "device must be cold",
    "verbose = true",
    "run_name",
    "log_level",
    "data.path: data.path and data.path",
    "--accept max_steps",
    "--accept 'seed'",
    "x (keyword foo)",
    "x (argument data.path)",
    "BATCH_SIZE (environment BATCH_SIZE)",
    "x (--lr)",
    "(--batch-size)",
    "unknown key 'run_name'",
    "did you mean 'data.path'?",
    "`temper train DATA --new-run`",
    "--no-lora",
    "--max-tokens 7",
    'training.batch_size="4" and model.lora_config = false',
]
# Sentences of ours, with such a text in every kind of position.
SENTENCES = [
    "{} is no file",
    "{} must be a folder",
    "training.batch_size must be above 0, not {}",
    "the rows have no column {!r} (columns: {}): set data.prompt_column",
    "there is no model ({}); --new-run starts anew",
    "data.eval_path = x (argument data.eval_path) is not {}",
    "unknown run {!r} (known: {})",
    "start anew with `temper train DATA --new-run`: {}",
]


@pytest.mark.parametrize("spell", DIALECTS)
@pytest.mark.parametrize("sentence", SENTENCES)
@pytest.mark.parametrize("text", HOSTILE)
def test_s10_a_text_stands_as_it_is_in_every_sentence(
    text: str, sentence: str, spell: Callable[[str], str]
) -> None:
    user_text(text)
    whole = sentence.format(*[text] * sentence.count("{"))
    shown = repr(text) if "{!r}" in sentence else text
    assert shown in spell(whole)
    assert spell(whole).count(text) == whole.count(text)


@pytest.mark.parametrize("spell", DIALECTS)
def test_s10_no_name_of_a_setting_is_spelled_otherwise_in_a_text(
    spell: Callable[[str], str],
) -> None:
    names = [*KEYS, *all_flags()]
    text = user_text(" ".join(f"{name} = 1; {name}: x and ({name}) {name} must" for name in names))
    assert spell(text) == text
    for start, end in pairwise(range(0, len(text), 37)):  # as a line cut anywhere
        assert spell(text[start:end]) == text[start:end]


@pytest.mark.parametrize("text", HOSTILE)
def test_s10_what_no_text_holds_is_spelled_as_ever(text: str) -> None:
    """The texts above would be changed: a test that uses them can fail."""
    assert any(spell(text) != text for spell in DIALECTS)


@pytest.mark.parametrize("key", [k for k in KEYS if k not in ("verbose", "device")])
def test_s10_another_name_is_still_a_flag(key: str) -> None:
    user_text("training.seed" if key != "training.seed" else "data.path")
    assert in_flags(f"{key} must be so").startswith("--")


def test_s10_only_one_function_changes_a_sentence() -> None:
    """No pattern of this module substitutes by itself, past what is spared."""
    tree = ast.parse(Path(languages.__file__).read_text())
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not [f for f in called if isinstance(f, ast.Attribute) and f.attr in ("sub", "subn")]
    slices = [
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "sentence"
    ]
    assert set(slices) == {"_respelled"}


@pytest.mark.parametrize("text", HOSTILE)
def test_s10_what_a_setting_is_given_is_noted(text: str) -> None:
    load_config(flags={"data.path": text}, environment={})
    assert text in user_texts()


def test_s10_an_error_that_is_not_ours_is_noted_through_one_that_is() -> None:
    error = ValueError("it could not: set training.seed = 11")
    error.__cause__ = KeyError("set training.seed = 11")
    note_foreign(error)
    assert in_flags(str(error)) == str(error)
    assert in_flags(described(RuntimeError("pass data.path = 3"))).endswith("pass data.path = 3")


def test_s10_an_error_of_ours_that_was_never_raised_is_no_text_of_a_person() -> None:
    sentence = "training.seed must be a number"
    error = ValueError("two things are wrong")
    error.__context__ = ConfigurationError(sentence)
    note_foreign(error)
    assert in_flags(sentence).startswith("--seed")


def test_s10_a_text_may_be_shown_on_one_line_where_it_had_two() -> None:
    user_text("device\nmust be; training.seed\n = 1")
    for spell in DIALECTS:
        assert spell("device must be; training.seed = 1") == "device must be; training.seed = 1"


@pytest.mark.parametrize(
    "text",
    [
        "is this (keyword\nlr)",
        "see (argument\ndata.path)",
        "an unknown\nkey 'hue'",
        "`temper\ntrain --bs`",
    ],
)
def test_s10_words_on_two_lines_of_a_text_stay_when_they_are_shown_on_one(text: str) -> None:
    user_text(text)
    shown = f"rows.jsonl:3: {' '.join(text.split())}"
    for spell in DIALECTS:
        assert spell(shown) == shown


def test_s10_texts_inside_of_values_are_noted() -> None:
    note_user_values({"a_b": [{"c": "set training.seed = 1"}]})
    assert "data.too_many_bad_rows" in user_texts()


def test_s10_a_command_begins_with_no_texts(tmp_path: Path) -> None:
    user_text("training.seed = 1")
    assert main(["train", str(tmp_path / "gone.jsonl")]) == 2
    assert "training.seed = 1" not in user_texts()


BROAD = ("Exception", "BaseException", "PROBE_ERRORS")


def test_s10_no_error_of_others_is_quoted_without_being_noted() -> None:
    """Where whatever is raised is caught, its text goes on through `core.error_place`, or as the
    cause of an error of ours."""
    quoted = set()
    root = Path(temper.__file__).parents[1]
    for path in sorted([*root.glob("infrastructure/**/*.py"), *root.glob("colab/*.py")]):
        for handler in ast.walk(ast.parse(path.read_text())):
            if not isinstance(handler, ast.ExceptHandler) or not handler.name:
                continue
            is_broad = any(kind in ast.unparse(handler.type or handler) for kind in BROAD)
            inside = [*ast.walk(handler)]
            is_cause = any(isinstance(one, ast.Raise) and one.cause for one in inside)
            texts = [ast.unparse(one) for one in inside if isinstance(one, ast.FormattedValue)]
            is_quoted = f"{{{handler.name}}}" in texts or f"{{{handler.name}!r}}" in texts
            if is_broad and not is_cause and is_quoted:
                quoted.add(path.name)
    assert quoted <= {"form.py", "snapshots.py", "sampler_process.py"}  # which nothing respells


FILE_NAMES = [text for text in HOSTILE if "/" not in text and not text.startswith("-")]


@pytest.mark.parametrize("name", FILE_NAMES)
@pytest.mark.parametrize("is_folder", [False, True])
def test_h2_a_file_and_a_folder_are_called_what_they_are_called(
    name: str,
    is_folder: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if is_folder:
        Path(name).mkdir()
        Path(name, "log_level.bin").write_text("1\n")
    else:
        Path(name).write_text("1\n")
    assert main(["train", name]) == 2
    shown = capsys.readouterr().err
    assert name in shown or repr(name) in shown
    assert ("log_level.bin" in shown) is is_folder
    with pytest.raises(ValueError, match=r"data\.unknown_file_extension") as raised:
        temper.train(name)
    assert name in str(raised.value) or repr(name) in str(raised.value)


def test_h2_columns_are_called_what_they_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    columns = [
        *dict.fromkeys(text[:24].strip() for text in HOSTILE)
    ]  # of a longer one the start is shown
    rows = [dict.fromkeys(columns[n : n + 5], "some text") for n in range(0, len(columns), 5)]
    for number, row in enumerate(rows):
        write_jsonl(Path(f"{number}.jsonl"), [row] * 8)
        assert main(["train", f"{number}.jsonl"]) == 2
        assert f"(columns: {', '.join(row)})" in capsys.readouterr().err
        assert main(["train", f"{number}.jsonl", "--prompt-column", "log_leve"]) == 2
        shown = capsys.readouterr().err
        assert "--prompt-column" in shown
        assert all(column in shown for column in row)
        with pytest.raises(ValueError, match="columns:") as raised:
            temper.train(f"{number}.jsonl")
        assert f"(columns: {', '.join(row)})" in str(raised.value)


@pytest.mark.parametrize("role", HOSTILE)
def test_h2_what_is_wrong_with_rows_stands_in_their_words(
    role: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    messages = [{"role": role, "content": "a"}, {"role": "assistant", "content": "b"}]
    write_jsonl(Path("a.jsonl"), [{"messages": messages}] * 8)
    assert main(["train", "a.jsonl"]) == 2
    shown = capsys.readouterr().err
    assert role in shown or json.dumps(role)[1:-1] in shown or repr(role) in shown


def test_h2_runs_and_models_are_called_what_they_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log_level.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 8)
    for run in ("run_name", "training.seed"):
        Path("runs", run).mkdir(parents=True)
        Path("runs", run, "run.json").write_text(json.dumps({"run_id": run}))
    for command in (["resume", "data.path"], ["ask", "data.path", "log_level = 3?"]):
        assert main(command) == 2
        shown = capsys.readouterr().err
        assert "data.path" in shown
        assert "run_name" in shown
        assert "training.seed" in shown
    assert main(["train", "log_level.jsonl", "--model", "./output_dir"]) == 2
    assert "output_dir" in capsys.readouterr().err
    assert main(["eval", "run_name/log_level", "log_level.jsonl"]) == 2
    assert "run_name/log_level" in capsys.readouterr().err


ANSWER = (
    "Pass --lr 0.1 and set training.seed = 1 (--lr) (keyword foo); see log_level = 1, --accept x"
)
SHORT = ("--preset", "ci", "--max-steps", "2", "--no-testing", "--no-backups", "--new-run")


def test_s10_rows_stand_on_the_screen_as_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    question = "What is data.path = 3, or `temper train DATA --new-run`?"
    row = {"question": question, "answer": ANSWER, "task": "run_name", "output_dir": "x"}
    rows = [{**row, "number": n} for n in range(40)]
    rows += [{**row, "question": f"{question} {n}"} for n in range(40)]
    rows += [{"question": question, "answer": {"--lr": 3}}]
    write_jsonl(Path("log_level.jsonl"), rows)
    chosen = ["--task-column", "task", "--name", "max_memory_percent", "--verbose"]
    assert main(["train", "log_level.jsonl", *SHORT, *chosen]) == 0
    shown = capsys.readouterr()
    assert f"  prompt    {question}" in shown.out
    assert f"  expected  {ANSWER}" in shown.out
    assert "log_level.jsonl" in shown.out
    assert "output_dir" in shown.out
    assert "  run_name" in shown.out  # the task, in the table
    assert "-max-memory-percent-" in shown.out  # as the run's folder spells it
    assert "--name" not in shown.out
    assert "setting --backup-place" in shown.out  # ours is a flag all the same
    model = next(Path("runs").iterdir()) / "final"
    assert main(["eval", str(model), "log_level.jsonl", "--task-column", "task"]) == 0
    assert "run_name" in capsys.readouterr().out
    assert main(["ask", str(model), "What is training.seed = 3?"]) == 0


def test_s10_rows_stand_in_a_notebook_as_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"{n} data.path?", "answer": ANSWER} for n in range(40)]
    write_jsonl(Path("run_name.jsonl"), rows)
    off = {"enable_testing": False, "enable_backups": False}
    temper.train("run_name.jsonl", preset="ci", max_steps=2, new_run=True, **off)
    shown = capsys.readouterr().out
    assert f"  expected  {ANSWER}" in shown
    assert "run_name.jsonl" in shown
    assert "setting backup_place" in shown


def test_r6_what_is_learned_is_shown_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Notes stand on the console, and a healthy data set has none."""
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{n} + 1", "completion": str(n + 1)} for n in range(60)]
    write_jsonl(Path("healthy.jsonl"), rows)
    Path("odd").mkdir()
    write_jsonl(Path("odd/a.jsonl"), rows)
    Path("odd/a.xyz").write_text("not read")
    assert main(["train", "healthy.jsonl", *SHORT]) == 0
    healthy = capsys.readouterr().out
    assert main(["train", "odd", *SHORT]) == 0
    odd = capsys.readouterr().out
    before, _, _ = odd.partition("step 1 ")
    assert "a.xyz" in before
    assert "left out" not in healthy
    assert "note:" not in healthy
