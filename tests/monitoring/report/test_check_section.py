"""Results of checks on a page: escaped, by group, and tolerant of anything else in the file."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from infrastructure.monitoring.records.run_reader import CHECKS_FILE
from infrastructure.monitoring.records.run_view import read_view
from infrastructure.monitoring.report.check_section import checks

BAD: dict[str, Any] = {
    "name": "loss",
    "group": "unit",
    "status": "fail",
    "text": "it is <b>bad</b>",
    "remedy": "look at it",
    "numbers": {"loss": 3.25, "memory_bytes": "NaN"},
    "seconds": 0.4,
}
SPEED = {**BAD, "name": "speed", "group": "performance", "status": "pass", "remedy": ""}


def section_of(folder: Path, *rounds: object) -> str:
    (folder / CHECKS_FILE).write_text(json.dumps(rounds))
    return checks(read_view(folder))


def test_a_check_is_shown_in_full_and_its_text_is_no_markup(tmp_path: Path) -> None:
    section = section_of(tmp_path, {"step": 0, "verdict": "", "checks": [BAD]})
    assert "it is &lt;b&gt;bad&lt;/b&gt;" in section
    assert "→ look at it" in section
    assert "loss 3.25" in section
    assert "0.4 s" in section


def test_each_status_has_its_word(tmp_path: Path) -> None:
    statuses = {
        **{"pass": ("good", "ok"), "warn": ("warn", "warning")},
        **{"fail": ("bad", "failed"), "skipped": ("soft", "skipped")},
    }
    results = [{"name": status, "status": status} for status in statuses]
    section = section_of(tmp_path, {"step": 0, "verdict": "", "checks": [*results, 3]})
    for status, (css, word) in statuses.items():
        mark = f'<td><span class="{css}">{word}</span></td>'
        assert f"<td>{status}</td>{mark}<td></td><td></td><td></td>" in section


def test_the_twenty_newest_rounds_are_listed_with_what_is_wrong(tmp_path: Path) -> None:
    warning = {"name": "speed", "status": "warn", "text": "slow", "numbers": {"a": 1, "b": 2}}
    rounds: list[Any] = [{"step": step, "verdict": "fine"} for step in range(20)]
    rounds.append({"verdict": "one", "checks": [warning, {"name": "x", "status": "skipped"}]})
    (tmp_path / CHECKS_FILE).write_text(json.dumps(rounds))
    section = checks(read_view(tmp_path))
    items = re.findall(r"<li>(.*?)</li>", section)
    assert (items[0], len(items)) == ("<span>at step 1: fine</span>", 20)
    assert items[-1] == '<span class="bad">at step ?: one speed: slow</span>'
    assert "<td>a 1, b 2</td>" in section


@pytest.mark.parametrize("contents", ["", "{", "3", "[]", "[1, null]"])
def test_a_run_without_readable_checks_has_no_section(tmp_path: Path, contents: str) -> None:
    (tmp_path / CHECKS_FILE).write_text(contents)
    assert checks(read_view(tmp_path)) == ""


def test_a_run_shows_all_verdicts_and_the_newest_checks(tmp_path: Path) -> None:
    rounds = [
        {"step": 0, "verdict": "1 check: 1 failed", "checks": [BAD]},
        {"step": 70, "verdict": "1 check: 1 passed", "checks": [SPEED]},
    ]
    (tmp_path / CHECKS_FILE).write_text(json.dumps(rounds))
    section = checks(read_view(tmp_path))
    assert "at step 0: 1 check: 1 failed loss: it is &lt;b&gt;bad&lt;/b&gt;" in section
    assert "at step 70: 1 check: 1 passed" in section
    assert "<td>speed</td>" in section
    assert "<td>loss</td>" not in section


@pytest.mark.parametrize(
    "one", [{}, {"checks": 3}, {"checks": [3, {}]}, {"checks": [{**BAD, "numbers": 3}]}]
)
def test_a_round_of_any_shape_is_shown_as_far_as_it_goes(tmp_path: Path, one: Any) -> None:
    (tmp_path / CHECKS_FILE).write_text(json.dumps([one]))
    assert checks(read_view(tmp_path)).startswith("<section ")
