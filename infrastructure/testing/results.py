"""The results of checks: one result, summaries of several, and their text."""

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
    """The result of one check.

    Attributes:
        text: the finding, in one sentence.
        remedy: what the user can do; empty if there is nothing to do.
        numbers: measured values, by names that end with the unit.
        seconds: duration of the check.
    """

    name: str
    status: Status
    text: str
    remedy: str = ""
    group: Group = "unit"
    numbers: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, object]:
        """Return the result as JSON values without secrets; NaN and infinity become strings."""
        values = asdict(replace(self, text=redact(self.text), remedy=redact(self.remedy)))
        return dict(spell_numbers(values))


def count(results: Iterable[CheckResult]) -> dict[Status, int]:
    """Return the number of checks for each status: passed, warned, failed, skipped."""
    statuses = [result.status for result in results]
    return {status: statuses.count(status) for status in MARKS}


def has_failed(results: Iterable[CheckResult], *, strict: bool = False) -> bool:
    """Return whether a check failed or, if `strict`, whether a check failed or warned."""
    bad = ("fail", "warn") if strict else ("fail",)
    return any(result.status in bad for result in results)


def verdict(results: Sequence[CheckResult]) -> str:
    """Return a summary in one sentence."""
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
    """Return all results in one line of text, each with its remedy."""
    parts = (f"{r.name}: {r.text}" + (f" ({r.remedy})" if r.remedy else "") for r in results)
    return redact("; ".join(parts))


def lines_of(results: Sequence[CheckResult]) -> list[str]:
    """Return lines for display: the results by group, each followed by its remedy, then the
    verdict.
    """
    lines = []
    for group in GROUPS:
        members = [result for result in results if result.group == group]
        lines += [f"{group} checks"] if members else []
        for result in members:
            lines.append(f"  {MARKS[result.status]}  {result.name}: {result.text}")
            if result.remedy:
                lines.append(f"        → {result.remedy}")
    return [redact(line) for line in [*lines, verdict(results)]]
