"""The screen shows what a person and the data say, letter by letter, and nothing instead of it."""

import json
from pathlib import Path

import pytest

import temper
from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.flags import as_flag, flag_names
from infrastructure.config.sources.load import load_config
from infrastructure.config.sources.spelling import as_keyword
from infrastructure.core.errors import InputError
from infrastructure.core.messages import WORDS, Speller, as_key, phrase, spelled_by
from tests.data.builders import write_jsonl
from tests.slow import slow

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


@pytest.fixture(autouse=True)
def _in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a person sees it: only words spell a setting."""
    monkeypatch.delenv(WORDS)


@pytest.mark.parametrize("spell", [as_flag, as_keyword, as_key])
@pytest.mark.parametrize("text", HOSTILE)
def test_s10_a_text_stands_as_it_is_beside_a_setting(text: str, spell: Speller) -> None:
    with spelled_by(spell):
        shown = phrase("data.invalid_chat_template", value=text, alternative="")
        setting = spell("data.chat_template", "")
    assert shown.startswith(f"{setting}: {text!r} is ")


@pytest.mark.parametrize("spell", [as_flag, as_keyword, as_key])
def test_s10_no_name_of_a_setting_is_spelled_otherwise_in_a_text(spell: Speller) -> None:
    keys = schema_of(DeploymentConfig).fields
    names = [*keys, *(flag for key in keys for flag in flag_names(key))]
    text = " ".join(f"{name} = 1; {name}: x and ({name}) {{={name}}} must" for name in names)
    with spelled_by(spell):
        assert text in phrase("evaluation.results_file", file=text)


@pytest.mark.parametrize("text", HOSTILE)
def test_s10_a_value_is_shown_as_it_was_given(text: str) -> None:
    config = load_config(flags={"data.path": text}, environment={})
    assert config.data.path == text


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
    with pytest.raises(InputError) as raised:
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
    assert "--backup-place" in shown.out  # ours is a flag all the same
    model = next(Path("runs").iterdir()) / "final"
    assert main(["eval", str(model), "log_level.jsonl", "--task-column", "task"]) == 0
    assert "run_name" in capsys.readouterr().out
    assert main(["ask", str(model), "What is training.seed = 3?"]) == 0


@slow
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
    assert "backup_place" in shown


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
    assert "data.files_skipped" not in healthy
    assert "note:" not in healthy
