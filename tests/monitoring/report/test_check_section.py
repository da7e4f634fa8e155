"""Results of checks on a page: escaped, by group, and tolerant of anything else in the file."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from infrastructure.monitoring.records.run_reader import CHECKS_FILE
from infrastructure.monitoring.records.run_view import read_view
from infrastructure.monitoring.report.check_section import check_tables, checks

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


def test_each_group_is_a_card_and_text_is_no_markup() -> None:
    first, second = check_tables([BAD, SPEED])
    assert "it is &lt;b&gt;bad&lt;/b&gt;" in first
    assert "→ look at it" in first
    assert '<span class="bad">failed</span>' in first
    assert "loss 3.25" in first
    assert "0.4 s" in first
    assert '<span class="good">ok</span>' in second


def test_each_status_has_its_word_and_each_group_its_title() -> None:
    statuses = {
        **{"pass": ("good", "ok"), "warn": ("warn", "warning")},
        **{"fail": ("bad", "failed"), "skipped": ("soft", "skipped")},
    }
    groups = ["unit", "integration", "performance", "own"]
    results: list[object] = [
        {"name": status, "group": group, "status": status}
        for status, group in zip(statuses, groups, strict=True)
    ]
    cards = check_tables([*results, 3])
    headings = [
        *("What is trained, and how", "Real training steps, undone afterwards", "Speed", "own")
    ]
    for card, heading, (status, (css, word)) in zip(cards, headings, statuses.items(), strict=True):
        mark = f'<td><span class="{css}">{word}</span></td>'
        assert f"<h2>{heading}</h2>" in card
        assert f"<td>{status}</td>{mark}<td></td><td></td><td></td>" in card


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
