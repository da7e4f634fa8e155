"""The report's section on the results of checks, which are in `checks.json`.

The file is a list of rounds of checks, each with step, time, verdict and checks; see
`testing.results`. The first round is before training.
"""

from collections.abc import Mapping, Sequence

from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import clip, format_duration, format_number
from infrastructure.monitoring.drawing.html import (
    MAX_TEXT_CHARACTERS,
    Markup,
    element,
    joined,
    raw_markup,
    readable_key,
    table,
)
from infrastructure.monitoring.records.run_reader import objects_in
from infrastructure.monitoring.records.run_view import RunView
from infrastructure.monitoring.report.report_sections import section

MAX_ROUNDS = 20
CLASSES = {"pass": "good", "warn": "warn", "fail": "bad", "skipped": "soft"}
WORDS = {"pass": "ok", "warn": "warning", "fail": "failed", "skipped": "skipped"}


def checks(view: RunView) -> Markup:
    """Return the newest round of checks in full, the verdict of each round, and old failures."""
    rounds = view["checks"]
    if not rounds:
        return raw_markup("")
    rows = [_row(check) for check in objects_in(rounds[-1].get("checks"))]
    items = [element("li", _round(one)) for one in rounds]
    details = element("details", element("summary", "All checks"), _table(rows))
    listed = element("ul", *items[-MAX_ROUNDS:])
    return section(phrase("monitoring.checks_heading"), listed, details)


def _round(one: Mapping[str, object]) -> Markup:
    failed = [c for c in objects_in(one.get("checks")) if c.get("status") in ("fail", "warn")]
    parts = [f"at step {one.get('step', '?')}: {clip(str(one.get('verdict', '')), 600)}"]
    parts += [f"{c.get('name')}: {clip(str(c.get('text', '')), 600)}" for c in failed]
    return element("span", " ".join(parts), css_class="bad" if failed else None)


def _table(rows: Sequence[Sequence[object]]) -> Markup:
    return table(("check", "", "result", "measured", "time"), rows, "stack checks")


def _row(check: Mapping[str, object]) -> list[object]:
    status = str(check.get("status", ""))
    mark = element("span", WORDS.get(status, status), css_class=CLASSES.get(status))
    parts: list[object] = [clip(str(check.get("text", "")), MAX_TEXT_CHARACTERS)]
    if remedy := check.get("remedy"):
        text = clip(f"→ {remedy}", MAX_TEXT_CHARACTERS)
        parts.append(element("div", text, css_class="soft"))
    seconds = check.get("seconds")
    duration = format_duration(seconds) if isinstance(seconds, int | float) else ""
    return [check.get("name", ""), mark, joined(parts), _numbers(check.get("numbers")), duration]


def _numbers(numbers: object) -> str:
    if not isinstance(numbers, Mapping):
        return ""
    parts = [
        f"{readable_key(str(name))} {format_number(value)}"
        for name, value in numbers.items()
        if isinstance(value, int | float)
    ]
    return ", ".join(parts)
