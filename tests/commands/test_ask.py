"""`temper ask`: what is asked on the command line, piped in, or typed."""

import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from infrastructure.commands.ask import _typed
from infrastructure.commands.main import main
from infrastructure.evaluation.prompting import Answerer, answer_questions
from infrastructure.run.directory import RunDirectory
from infrastructure.run.finalize import write_summary

QUESTIONS = ["What is 12 + 5?", "Reverse abc"]


@pytest.fixture(scope="module")
def answers(saved_llama: Path) -> list[str]:
    return answer_questions(saved_llama, QUESTIONS, max_tokens=12)


def ask(*words: str) -> int:
    return main(["ask", *words, "--max-tokens", "12"])


def test_each_question_is_shown_with_its_answer(
    saved_llama: Path, answers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(str(saved_llama), *QUESTIONS) == 0
    shown, beside = capsys.readouterr()
    cut = "note: evaluation.answer_cut_at_max_tokens(tokens=12)"
    assert beside.splitlines().count(cut) == 2
    assert [line for line in shown.splitlines() if line and line[0] != " "] == QUESTIONS
    for answer in answers:
        assert "\n".join(f"  {line}" for line in (answer or "(empty answer)").splitlines()) in shown


def test_lines_that_are_piped_in_are_answered_one_by_one(
    saved_llama: Path,
    answers: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{QUESTIONS[0]}\n\n{QUESTIONS[1]}"))
    assert ask(str(saved_llama), "--json") == 0
    out, beside = capsys.readouterr()
    assert "note: " not in beside
    shown = [json.loads(line) for line in out.splitlines()]
    assert shown == [
        {"question": question, "answer": answer}
        for question, answer in zip(QUESTIONS, answers, strict=True)
    ]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_lines_are_typed_until_the_end_and_empty_ones_are_none(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = io.StringIO("a \n\n  b\n")
    monkeypatch.setattr(stdin, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stdin", stdin)
    assert [*_typed()] == ["a", "b"]
    assert capsys.readouterr().out == "> " * 4 * is_terminal


def test_an_answer_cannot_steer_the_terminal(
    saved_llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [SimpleNamespace(text=" a\x1b[2J\nb ", is_cut=False)]
    monkeypatch.setattr(Answerer, "answers", lambda *_: answers)
    assert ask(str(saved_llama), "A", "B") == 0
    assert capsys.readouterr().out == "".join(f"{name}\n  a�[2J\n  b\n\n" for name in "AB")
    monkeypatch.setattr("sys.stdin", io.StringIO("A\n"))
    assert ask(str(saved_llama)) == 0
    assert capsys.readouterr().out == "a�[2J\nb\n"


def test_a_run_is_known_by_its_name(
    saved_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(saved_llama, tmp_path / "my-run" / "final")
    assert ask("my-run", QUESTIONS[0], "--output", str(tmp_path)) == 0
    assert QUESTIONS[0] in capsys.readouterr().out
    assert ask("no-run", QUESTIONS[0], "--output", str(tmp_path)) == 2


def test_a_context_is_given_as_the_rows_of_the_training_had_it(
    saved_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [expected] = answer_questions(saved_llama, ["Where?\n\nRome is in Italy."], max_tokens=12)
    assert ask(str(saved_llama), "Where?", "--context", "Rome is in Italy.", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"question": "Where?", "answer": expected}


def test_a_model_that_knows_contexts_gets_a_note_how_one_is_given(
    saved_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path / "my-run")
    shutil.copytree(saved_llama, run.final)
    run.run_file.write_text("{}")
    for has_context in (True, False):
        write_summary(run, {"has_context": has_context})
        for words, is_missing in (((), has_context), (("--context", "Rome."), False)):
            assert ask(str(run.final), "Where?", *words) == 0
            assert ("commands.note_model_expects_context" in capsys.readouterr().err) == is_missing


def test_an_empty_question_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("my-run", QUESTIONS[0], " ") == 2
    assert "commands.no_question_asked" in capsys.readouterr().err


def test_final_of_a_folder_of_runs_is_the_newest_model(
    saved_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `temper eval` has it."""
    shutil.copytree(saved_llama, tmp_path / "my-run" / "final")
    (tmp_path / "my-run/run.json").write_text("{}")
    assert ask(str(tmp_path / "final"), QUESTIONS[0]) == 0
    assert QUESTIONS[0] in capsys.readouterr().out


def test_a_system_prompt_is_written_before_each_question(
    saved_llama: Path, answers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(str(saved_llama), QUESTIONS[1], "--system", "Answer in rhymes", "--json") == 0
    answer = json.loads(capsys.readouterr().out)["answer"]
    assert answer != answers[1]
    answerer = Answerer(saved_llama, max_tokens=12)
    assert answerer.answer([QUESTIONS[1]], "Answer in rhymes") == [answer]


def test_no_question_is_refused_before_the_model_is_loaded(
    saved_llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n  \n"))
    monkeypatch.setattr("infrastructure.evaluation.prompting.Answerer", None)
    assert ask(str(saved_llama)) == 2
    assert "commands.no_question_asked" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["ask"], ["eval"]])
def test_a_version_that_is_not_there_is_no_model(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs/one"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    for name, code in (
        ("one@best", "run.no_measured_checkpoint(run=one)"),
        ("runs/one@12", "run.no_such_checkpoint(run=one, which=at step '12'"),
    ):
        assert main([*words, name, "rows.jsonl"]) == 2
        assert code in capsys.readouterr().err
    assert main([*words, "two@best", "rows.jsonl"]) == 2
    assert "monitoring.unknown_run_of_checkpoint" in (capsys.readouterr().err)


def test_a_question_may_stand_after_a_flag(
    saved_llama: Path, answers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", str(saved_llama), "--max-tokens", "12", "--json", QUESTIONS[0]]) == 0
    assert json.loads(capsys.readouterr().out)["answer"] == answers[0]
