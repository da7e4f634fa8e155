"""The report's section on quantum steps, from whole, partial and damaged files."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from infrastructure.features.quantum.records import QUANTUM_FILE
from infrastructure.features.quantum.report import quantum_steps
from infrastructure.monitoring.records.run_view import read_view

ANSWER: dict[str, Any] = {
    "step": 0,
    "epoch": 0,
    "problem": "data_selection",
    "outcome": "answered",
    "chosen": "5 of 10 training examples",
    "answered_by": "exact",
    "energy": 0.25,
    "num_variables": 10,
    "alternatives": {"greedy": 0.5, "random": 2.0},
    "dropped": ["rows.jsonl:7"],
    "failures": ["azure_quantum: no token"],
    "seconds": 1.5,
    "solver_seconds": 1.0,
}
SKIPPED = {"step": 9, "epoch": 1, "problem": "data_selection", "outcome": "skipped", "why": "dear"}


def shown(folder: Path, *records: Any) -> str:
    (folder / QUANTUM_FILE).write_text(json.dumps({"records": list(records)}))
    return quantum_steps(read_view(folder))


def test_the_problem_the_choice_and_its_solver_are_shown(tmp_path: Path) -> None:
    page = shown(tmp_path, ANSWER, SKIPPED)
    assert "quantum.question_data()" in page
    assert "quantum.answered_times(times=once, last=, sampler=exact)" in page
    assert "quantum.unanswered_times(times=Once)." in page
    assert "quantum.energy_explained" in page
    assert "<td>0</td><td>1</td><td>exact</td>" in page  # epochs count from 1, as everywhere
    assert "greedy 0.5" in page
    assert "skipped: dear" in page
    assert "azure_quantum: no token" in page
    assert "rows.jsonl:7" in page


def first_paragraph(page: str) -> str:
    return page.partition("<p>")[2].partition("</p>")[0]


def test_what_was_decided_and_whether_it_paid_in_two_sentences(tmp_path: Path) -> None:
    decided = "quantum.chosen_data(chosen=5 of 10 training examples)"
    better = "quantum.better_answer_found(duration=1.5 s)"
    assert first_paragraph(shown(tmp_path, ANSWER)) == f"{decided} {better}"
    plain = {**ANSWER, "alternatives": {"greedy": 0.25}}
    simple = "quantum.simple_rule_equal()"
    gained = f"quantum.gained_nothing(duration=1.5 s, reason={simple})"
    assert first_paragraph(shown(tmp_path, plain)) == f"{decided} {gained}"
    assert first_paragraph(shown(tmp_path, SKIPPED)) == (
        "quantum.nothing_decided_because(reason=dear)"
    )


OTHER = {
    **{"step": 1200, "epoch": 2, "problem": "block_selection", "outcome": "answered"},
    **{"chosen": "blocks 1 of 2 train", "answered_by": "random_rows", "is_fallback": True},
    **{"energy": -2.0, "num_variables": 1200, "seconds": 60.0, "solver_seconds": 30.0},
    **{"alternatives": {"a_b": -1.0, "top": "low"}, "remarks": ["near"], "failures": ["late"]},
    "dropped": ["a.jsonl:7", "b.jsonl:9"],
}


def test_the_whole_section_of_several_steps(tmp_path: Path) -> None:
    """The newest answer is described, and the time of all of them is counted."""
    page = shown(tmp_path, ANSWER, SKIPPED, {**SKIPPED, "outcome": "failed", "why": ""}, OTHER)
    steps = [
        *("step", "epoch", "answered by", "binary variables", "energy", "best simple method"),
        *("time", "quantum.solver_time_column()"),
        *("0", "1", "exact", "10", "0.2500", "greedy 0.5000", "1.5 s", "1.0 s"),
        *("9", "2", "skipped: dear", "9", "2", "failed"),
        *("1,200", "3", "random_rowsquantum.fallback()", "1,200", "-2", "a b -1"),
        *("1 min 00 s", "30 s"),
    ]
    answered = "quantum.answered_times(times=2 times, last=last , sampler=random_rows)"
    assert re.split(r"\s*(?:<[^>]+>\s*)+", page)[1:-1] == [
        "The quantum step",
        "quantum.chosen_blocks(chosen=blocks 1 of 2 train)"
        " quantum.better_answer_found(duration=1 min 02 s)",
        "quantum.how_decided()",
        f"quantum.question_blocks() quantum.energy_explained() {answered}"
        " quantum.unanswered_times(times=2 times).",
        *steps,
        *("late", "near", "quantum.excluded_examples(examples=a.jsonl:7, b.jsonl:9)"),
    ]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([{**ANSWER, "problem": "other"}], "quantum.decided(chosen=5 of 10 training examples)"),
        ([{**OTHER}], "quantum.chosen_blocks(chosen=blocks 1 of 2 train)"),
        ([{**SKIPPED, "why": ""}], "quantum.nothing_decided()"),
        ([ANSWER, SKIPPED], "quantum.chosen_data(chosen=5 of 10 training examples)"),
        ([SKIPPED, {**SKIPPED, "why": "late"}], "quantum.nothing_decided_because(reason=late)"),
        ([{**ANSWER, "energy": None}], "quantum.benefit_not_measured(duration=1.5 s)"),
        ([{**ANSWER, "alternatives": {}}], "quantum.benefit_not_measured(duration=1.5 s)"),
    ],
)
def test_the_first_paragraph_is_of_the_newest_answer(
    records: list[Any], expected: str, tmp_path: Path
) -> None:
    assert expected in first_paragraph(shown(tmp_path, *records))


def test_the_newest_fifty_steps_are_listed(tmp_path: Path) -> None:
    page = shown(tmp_path, *({**ANSWER, "step": 1000 + number} for number in range(60)))
    steps = [row.partition("</td>")[0] for row in page.split("<tr><td>")[1:]]
    assert steps == [f"{1000 + number:,}" for number in range(10, 60)]
    assert "times=60 times, last=last , sampler=exact" in page


def test_only_what_was_skipped(tmp_path: Path) -> None:
    assert "quantum.unanswered_times(times=Once): dear" in shown(tmp_path, SKIPPED)


def test_nothing_where_there_was_no_quantum_step(tmp_path: Path) -> None:
    assert quantum_steps(read_view(tmp_path)) == ""
    assert shown(tmp_path) == ""
    (tmp_path / QUANTUM_FILE).write_text("{")
    assert quantum_steps(read_view(tmp_path)) == ""


@pytest.mark.parametrize("key", ANSWER)
@pytest.mark.parametrize("damage", [None, "<b>", [], {}, [1, "x"], {"a": "b"}, float("nan")])
def test_a_strange_value_breaks_nothing(tmp_path: Path, key: str, damage: Any) -> None:
    page = shown(tmp_path, ANSWER, {**ANSWER, key: damage})
    assert "<b>" not in page
    shown(tmp_path, {k: v for k, v in ANSWER.items() if k != key})
