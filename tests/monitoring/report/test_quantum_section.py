"""The report's section on quantum steps, from whole, partial and damaged files."""

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.monitoring.records.run_reader import COMPARISON_FILE, QUANTUM_FILE
from infrastructure.monitoring.records.run_view import read_view
from infrastructure.monitoring.report.quantum_section import quantum_steps

ANSWER: dict[str, Any] = {
    "step": 0,
    "epoch": 0,
    "problem": "data_selection",
    "outcome": "answered",
    "chosen": "5 of 10 training examples",
    "answered_by": "tabu",
    "energy": 0.25,
    "num_variables": 10,
    "alternatives": {"greedy": 0.5, "random": 2.0},
    "random_energies": [1.0, 2.0, 3.0, 4.0],
    "density": [0.5, 1.0, 0.0],
    "by_task": {"sums": [3, 4], "dates": [2, 6]},
    "dropped": ["rows.jsonl:7"],
    "failures": ["leap_hybrid: no token"],
    "seconds": 1.5,
    "solver_seconds": 1.0,
}
BLOCKS = {
    **{key: ANSWER[key] for key in ("step", "epoch", "outcome", "energy", "num_variables")},
    **{"problem": "block_selection", "answered_by": "exact", "chosen": "blocks 1 of 2 train"},
    **{"blocks": ["block 1"], "all_blocks": ["block 0", "block 1"], "seconds": 0.5},
}
SKIPPED = {"step": 9, "epoch": 1, "problem": "data_selection", "outcome": "skipped", "why": "dear"}


def shown(folder: Path, *records: Any, rows: Any = None) -> str:
    (folder / QUANTUM_FILE).write_text(json.dumps({"records": list(records)}))
    if rows is not None:
        (folder / COMPARISON_FILE).write_text(json.dumps({"rows": rows}))
    return quantum_steps(read_view(folder))


def test_the_problem_the_choice_and_the_comparison_are_shown(tmp_path: Path) -> None:
    rows = [
        {"answer": "quantum", "eval_loss": 1.25, "steps": 60, "seconds": 9.0},
        {"answer": "none", "eval_loss": 1.5, "steps": 60, "seconds": 8.0},
    ]
    page = shown(tmp_path, ANSWER, SKIPPED, rows=rows)
    assert "Which examples does the model train on?" in page
    assert "monitoring.quantum_answered_times(times=once, last=, sampler=tabu)" in page
    assert "monitoring.quantum_unanswered_times(times=Once)." in page
    assert "monitoring.quantum_energy_explained" in page
    assert "monitoring.quantum_energy_caption(share=100 %, count=4)" in page
    assert "<td>0</td><td>1</td><td>tabu</td>" in page  # epochs count from 1, as everywhere
    assert page.count("<svg") == 2
    assert "greedy 0.5" in page
    assert "skipped: dear" in page
    assert "75.0 %" in page  # of the sums
    assert "leap_hybrid: no token" in page
    assert "rows.jsonl:7" in page
    assert "the sampler&#x27;s answer" in page
    assert "1.250" in page


def first_paragraph(page: str) -> str:
    return page.partition("<p>")[2].partition("</p>")[0]


def test_what_was_decided_and_whether_it_paid_in_two_sentences(tmp_path: Path) -> None:
    decided = "Chosen for training: 5 of 10 training examples."
    better = "monitoring.quantum_better_answer_found(duration=1.5 s)"
    assert first_paragraph(shown(tmp_path, ANSWER)) == f"{decided} {better}"
    plain = {**ANSWER, "alternatives": {"greedy": 0.25}}
    simple = "monitoring.quantum_simple_rule_equal()"
    gained = f"monitoring.quantum_gained_nothing(duration=1.5 s, reason={simple})"
    assert first_paragraph(shown(tmp_path, plain)) == f"{decided} {gained}"
    rows = [{"answer": "quantum", "eval_loss": 1.5}, {"answer": "none", "eval_loss": 1.25}]
    losses = "monitoring.quantum_loss_compared(loss_with=1.500, loss_without=1.250)"
    worse = f"monitoring.quantum_not_worthwhile(): {losses}, for 1.5 s."
    assert first_paragraph(shown(tmp_path, plain, rows=rows)) == f"{decided} {worse}"
    assert first_paragraph(shown(tmp_path, SKIPPED)) == "Nothing was decided: dear."


def test_blocks_over_time(tmp_path: Path) -> None:
    page = shown(tmp_path, BLOCKS, {**BLOCKS, "step": 5, "blocks": ["block 0"]})
    assert "step 5: block 0 trains" in page
    assert "step 0: block 0 is frozen" in page


def test_only_what_was_skipped(tmp_path: Path) -> None:
    assert "monitoring.quantum_unanswered_times(times=Once): dear" in shown(tmp_path, SKIPPED)


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
    shown(tmp_path, {k: v for k, v in ANSWER.items() if k != key}, rows=[damage])
