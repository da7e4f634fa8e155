"""What a check found, what several found together, and how that is said."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from infrastructure.core.redact import redact
from infrastructure.monitoring.drawing.metrics_file import spell_numbers

Status = Literal["pass", "warn", "fail", "skipped"]
Group = Literal["unit", "integration", "performance"]

GROUPS: tuple[Group, ...] = ("unit", "integration", "performance")
MARKS: dict[Status, str] = {"pass": "ok  ", "warn": "WARN", "fail": "FAIL", "skipped": "skip"}


@dataclass(frozen=True)
class CheckResult:
    """One thing that was checked.

    Attributes:
        text: what was found, in one sentence.
        remedy: what to do about it; empty where nothing is to be done.
        numbers: what was measured, by names that end in their unit.
        seconds: how long the check took.
    """

    name: str
    status: Status
    text: str
    remedy: str = ""
    group: Group = "unit"
    numbers: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, object]:
        """As JSON values, without secrets; a number that is not finite is its name."""
        values = asdict(replace(self, text=redact(self.text), remedy=redact(self.remedy)))
        return dict(spell_numbers(values))


def count(results: Iterable[CheckResult]) -> dict[Status, int]:
    """How many passed, warned, failed and were skipped."""
    statuses = [result.status for result in results]
    return {status: statuses.count(status) for status in MARKS}


def has_failed(results: Iterable[CheckResult], *, strict: bool = False) -> bool:
    """Whether one failed; when `strict`, whether one so much as warned."""
    bad = ("fail", "warn") if strict else ("fail",)
    return any(result.status in bad for result in results)


def verdict(results: Sequence[CheckResult]) -> str:
    """The sum of it in one sentence."""
    counts = count(results)
    parts = [f"{counts['pass']} passed"]
    parts += [f"{counts[status]} {word}" for status, word in _OTHERS if counts[status]]
    seconds = sum(result.seconds for result in results)
    return f"{', '.join(parts)} in {seconds:.1f} s"


_OTHERS: tuple[tuple[Status, str], ...] = (
    ("warn", "with a warning"),
    ("fail", "failed"),
    ("skipped", "skipped"),
)


def sentence(results: Iterable[CheckResult]) -> str:
    """All of them in one line, each with what to do about it."""
    parts = (f"{r.name}: {r.text}" + (f" ({r.remedy})" if r.remedy else "") for r in results)
    return redact("; ".join(parts))


def lines_of(results: Sequence[CheckResult]) -> list[str]:
    """A line for each check, its remedy below it, the groups apart, and the verdict at the end."""
    lines = []
    for group in GROUPS:
        members = [result for result in results if result.group == group]
        lines += [f"{group} checks"] if members else []
        for result in members:
            lines.append(f"  {MARKS[result.status]}  {result.name}: {result.text}")
            if result.remedy:
                lines.append(f"        → {result.remedy}")
    return [redact(line) for line in [*lines, verdict(results)]]
