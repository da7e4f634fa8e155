"""What is shown when a run has ended."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from infrastructure.run.summary_text import (
    Paths,
    closing_lines,
    early_lines,
    paths_of,
    steps_ahead,
)


def a_summary(run: Path, **more: Any) -> dict[str, Any]:
    example = {"prompt": "Reverse abc", "expected": "cba", "before": "", "after": "cba\nok"}
    return {
        "before": {"eval_loss": 4.0, "exact_match": {"all": 0.0}},
        "after": {"eval_loss": 1.0, "exact_match": {"all": 0.75}},
        "example": example,
        "num_questions": 8,
        "paths": paths_of(run),
        **more,
    }


def test_the_end_shows_table_example_and_places(tmp_path: Path) -> None:
    lines = closing_lines(tmp_path, a_summary(tmp_path))
    text = "\n".join(lines)
    assert "-75.0%" in text
    assert "run.exact_match_over(prompts=run.held_out_prompts(count=8, few=))" in text
    assert "  before    (empty answer)" in lines
    assert "  after     cba" in lines
    assert "            ok" in lines
    assert f"run.files_head(run={tmp_path})" in lines


def test_all_lines_of_the_end_are_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "r"
    (run / "final").mkdir(parents=True)
    (run / "final/tokenizer_config.json").write_text("{}")
    for name in ("checkpoints", "stacks", "metrics.jsonl", "report.html"):
        (run / name).mkdir()
    assert [*paths_of(run)] == ["run", "model", "stacks", "checkpoints", "metrics", "report"]
    more = {"status": "finished", "steps": 3, "total_steps": 9, "loss_function": "mse"}
    example = {"prompt": "q", "expected": "e\n  \nf", "before": None, "after": "a"}
    lines = closing_lines(run, a_summary(run, **more, example=example))
    table = lines.pop(2)
    assert "held-out loss (mse)" in table
    assert lines == [
        "run.finished_early(steps=3, total=9, reason=)",
        "",
        "run.exact_match_over(prompts=run.held_out_prompts(count=8, few=))",
        "",
        "run.held_out_example()",
        "  prompt    q",
        "  expected  e",
        "            f",
        "  before    (empty answer)",
        "  after     a",
        "",
        "run.files_head(run=r)",
        "  final          monitoring.path_final()",
        "  stacks         stackwise.path_stacks()",
        "  checkpoints    monitoring.path_checkpoints()",
        "  metrics.jsonl  monitoring.path_metrics()",
        "run.ask_line(command=temper ask r/final)",
        "run.report_line(how=run.open_report_in_browser(run=r))",
    ]


def test_the_last_table_counts_the_held_out_rows_that_were_not_answered(tmp_path: Path) -> None:
    lines = closing_lines(tmp_path, a_summary(tmp_path, num_held_out=10))
    (line,) = [line for line in lines if "run.exact_match_over" in line]
    assert "run.answered_held_out_prompts(answered=8, total=10)" in line
    for prompts in (7, 8):
        whole = a_summary(tmp_path, num_held_out=10, validation_prompts=prompts)
        assert line in closing_lines(tmp_path, whole)
    cut = closing_lines(tmp_path, a_summary(tmp_path, num_held_out=10, validation_prompts=9))
    (line,) = [line for line in cut if "run.exact_match_over" in line]
    assert "run.prompts_with_short_answers(answered=8, total=10)" in line
    lines = closing_lines(tmp_path, a_summary(tmp_path, num_held_out=8))
    assert "run.exact_match_over(prompts=run.held_out_prompts(count=8, few=))" in lines
    for number, few_words in ((4, "run.too_few_prompts()"), (5, "")):
        few = a_summary(tmp_path, num_questions=number, num_held_out=number)
        prompts = f"run.held_out_prompts(count={number}, few={few_words})"
        assert f"run.exact_match_over(prompts={prompts})" in closing_lines(tmp_path, few)


def test_a_model_without_tokenizer_or_that_gives_scores_gets_no_question(tmp_path: Path) -> None:
    model = tmp_path / "final"
    model.mkdir()
    summary = a_summary(tmp_path)
    summary["paths"]["model"] = str(model)
    assert "temper ask" not in "\n".join(closing_lines(tmp_path, summary))
    (model / "adapter_config.json").write_text('{"task_type": "CAUSAL_LM"}')  # of its base
    assert "temper ask" in "\n".join(closing_lines(tmp_path, summary))
    (model / "adapter_config.json").unlink()
    (model / "tokenizer_config.json").write_text("{}")
    assert "temper ask" in "\n".join(closing_lines(tmp_path, summary))
    (model / "config.json").write_text('{"architectures": ["LlamaForSequenceClassification"]}')
    assert "temper ask" not in "\n".join(closing_lines(tmp_path, summary))


def test_the_end_before_the_last_step_has_its_reason(tmp_path: Path) -> None:
    more = {"status": "finished", "steps": 126, "total_steps": 840, "reason": "it is enough"}
    early = closing_lines(tmp_path, a_summary(tmp_path, **more))
    assert early[0] == "run.finished_early(steps=126, total=840, reason=: it is enough)"
    whole = closing_lines(tmp_path, a_summary(tmp_path, **{**more, "steps": 840}))
    assert not [line for line in whole if "run.finished_early" in line]
    for unclear in ({"status": "stopped"}, {"steps": None}, {"total_steps": None}):
        assert early_lines(cast(Any, {**more, **unclear})) == []


def test_where_the_result_is_shown_already_only_places_follow(tmp_path: Path) -> None:
    lines = closing_lines(tmp_path, a_summary(tmp_path), is_result_shown=True)
    assert lines[:2] == ["", f"run.files_head(run={tmp_path})"]


def test_in_a_notebook_one_is_shown_what_to_do_in_a_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r" / "final").mkdir(parents=True)
    (tmp_path / "r/final/tokenizer_config.json").write_text("{}")
    monkeypatch.setattr("infrastructure.run.summary_text.in_notebook_kernel", lambda: True)
    text = "\n".join(closing_lines(tmp_path / "r", a_summary(tmp_path / "r"), True))
    assert "run.show_report_in_a_cell(run=r)" in text
    assert "run.ask_in_a_cell(model=r/final, " in text
    assert "temper ask" not in text
    assert "run.open_report_in_browser" not in text


def test_questions_come_with_the_system_prompt_of_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final/tokenizer_config.json").write_text("{}")
    summary = a_summary(tmp_path, system_prompt="It's a calculator.")
    [line] = [each for each in closing_lines(tmp_path, summary) if "run.ask_line" in each]
    words = shlex.split(line.removeprefix("run.ask_line(command=").removesuffix(")"))
    assert words == ["temper", "ask", str(tmp_path / "final"), "--system", "It's a calculator."]
    long = closing_lines(tmp_path, a_summary(tmp_path, system_prompt="word " * 99))
    assert [each for each in long if each.endswith(" --system SYSTEM_PROMPT)")]
    about = closing_lines(tmp_path, a_summary(tmp_path, has_context=True))
    assert [each for each in about if each.endswith(f"{tmp_path / 'final'} --context TEXT)")]
    monkeypatch.setattr("infrastructure.run.summary_text.in_notebook_kernel", lambda: True)
    about = closing_lines(tmp_path, a_summary(tmp_path, has_context=True))
    question = r'question="your question\n\nits context"'
    assert [each for each in about if "run.ask_in_a_cell" in each and question in each]
    [line] = [each for each in closing_lines(tmp_path, summary) if "run.ask_in_a_cell" in each]
    assert """question="your question", more=, system="It's a calculator.")""" in line


def test_a_long_answer_is_cut_and_blank_lines_are_left_out(tmp_path: Path) -> None:
    long = "\n\n".join("abcdefghijk")
    example = {"prompt": long.upper(), "expected": "y", "before": long, "after": "y"}
    lines = closing_lines(tmp_path, a_summary(tmp_path, example=example))
    assert "            h" in lines
    assert "            i" not in lines
    assert "            run.example_lines_omitted(count=3)" in lines
    assert "  prompt    run.example_lines_omitted(count=3)" in lines  # the question is its end
    assert "            K" in lines
    assert "            C" not in lines


def test_a_text_without_line_breaks_is_cut_too(tmp_path: Path) -> None:
    long = "begin" + "x" * 5000 + "end"
    example = {"prompt": long, "expected": "y", "before": "\n".join("abcdefghij"), "after": long}
    lines = closing_lines(tmp_path, a_summary(tmp_path, example=example))
    assert max(map(len, lines)) == 400 + len("  after     ")
    for length, is_cut in ((400, False), (401, True)):
        example["before"] = "b" * length
        [line] = [
            line
            for line in closing_lines(tmp_path, a_summary(tmp_path, example=example))
            if line.startswith("  before")
        ]
        assert line == "  before    " + ("b" * 398 + " …" if is_cut else "b" * length)
    assert any("prompt" in line and line.endswith("end") for line in lines)
    assert any("after" in line and "begin" in line for line in lines)
    assert "            run.example_lines_omitted(count=2)" in lines


def test_a_note_never_stands_for_one_line(tmp_path: Path) -> None:
    example = {"prompt": "q", "expected": "y", "before": "\n".join("abcdefghi"), "after": "z"}
    lines = closing_lines(tmp_path, a_summary(tmp_path, example=example))
    assert "            i" in lines
    assert not any("run.example_lines_omitted" in line for line in lines)


def test_without_held_out_data_nothing_is_claimed(tmp_path: Path) -> None:
    summary = a_summary(tmp_path, before={}, after={}, example=None, num_questions=0)
    assert "run.nothing_held_out" in closing_lines(tmp_path, summary)[1]


def test_only_what_is_there_has_a_place(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    assert paths_of(tmp_path) == {"run": str(tmp_path), "model": str(tmp_path / "final")}


def test_telling_the_end_loads_no_torch() -> None:
    probe = "import sys, infrastructure.run.summary_text; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_an_answer_is_shown_without_the_space_and_the_bytes_it_begins_with() -> None:
    example = {"prompt": "2+2", "expected": "4", "before": "\x1b[2J\x00", "after": " 4"}
    lines = closing_lines(Path("runs/x"), {"example": example, "paths": {}})
    assert "  after     4" in lines
    assert not [line for line in lines if "\x1b" in line or "\x00" in line]


def test_the_model_of_an_unfinished_run_is_missing_in_words(tmp_path: Path) -> None:
    paths = paths_of(tmp_path)
    assert paths == {"run": str(tmp_path)}
    assert paths.get("model") is None
    with pytest.raises(KeyError, match=rf"^run\.no_model_until_finished\(run={tmp_path.name}\)$"):
        paths["model"]
    with pytest.raises(KeyError, match="'rack'"):
        paths["rack"]
    with pytest.raises(KeyError, match="'model'"):
        Paths()["model"]


def test_what_else_is_known_at_the_end_has_its_line(tmp_path: Path) -> None:
    cost = {"text": "3.75 EUR", "seconds": 5400.0, "price_per_hour": "2.50 EUR", "amount": 3.75}
    change = {"name": "learning_rate", "was": 1, "is": 2, "effect": "changes the result"}
    known = {
        "final_step": 40,
        "num_pairs": 7,
        "held_out_changed_after": 30,
        "cost": cost,
        "history": [{"step": 20, "changes": [change]}],
        "backup": {"published": "hf://a/b", "text": "backed up"},
        "advice": [
            {"text": "better", "command": "temper export a"},
            {"text": "longer:", "command": "more epochs"},
        ],
    }
    lines = closing_lines(tmp_path, a_summary(tmp_path, **known))
    expected = [
        "run.model_of_best_step(step=40)",
        "run.changed_during_training()",
        "  run.changed_at_step(name=learning_rate, was=1, step=20, now=2)",
        "run.before_not_comparable(step=30)",
        "run.ranked_pairs(count=7)",
        "run.held_out_example()",
        "run.total_cost(cost=3.75 EUR, duration=1 h 30 min, hourly_price=2.50 EUR)",
        "run.backup_copy(url=hf://a/b)",
        "backed up",
        "better: temper export a",
        "longer: more epochs",
    ]
    assert [line for line in lines if line in expected] == expected
    plain = closing_lines(tmp_path, a_summary(tmp_path))
    assert [line for line in plain if line in expected] == ["run.held_out_example()"]


def test_the_command_for_a_vision_language_model_has_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "processor_config.json").touch()
    (tmp_path / "final" / "tokenizer_config.json").write_text("{}")
    for in_notebook in (False, True):
        monkeypatch.setattr(
            "infrastructure.run.summary_text.in_notebook_kernel", lambda answer=in_notebook: answer
        )
        lines = closing_lines(tmp_path, a_summary(tmp_path))
        [line] = [line for line in lines if line.startswith("run.ask_line")]
        command = line.removeprefix("run.ask_line(command=").removesuffix(")")
        assert command.startswith("!temper ask" if in_notebook else "temper ask")
        assert " --image FILE" in command


@pytest.mark.parametrize(
    ("done", "total", "text"),
    [
        (0, 1, "1 step"),
        (0, 1200, "1,200 steps"),
        (3, 4, "1 more step, to 4"),
        (200, 1200, "1,000 more steps, to 1,200"),
    ],
)
def test_a_resumed_run_has_fewer_steps_ahead(done: int, total: int, text: str) -> None:
    assert steps_ahead(done, total) == text
