"""Print what became of each field case: `make field`.

A test belongs to the case that its name begins with: `test_r5_…` to R5. Exit code 1 if a case fails
or has no test.
"""

import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
COUNTS = {"R": 15, "D": 10, "S": 12, "F": 24, "P": 7, "W": 3}
CASES = [f"{kind}{n}" for kind, count in COUNTS.items() for n in range(1, count + 1)]
NAME = re.compile(r"::test_(?P<case>[rdsfpw]\d+)_(?P<what>\w+)")


class Results:
    """Collect the outcome of each test by its case."""

    def __init__(self) -> None:
        self.outcomes: dict[str, dict[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        match = NAME.search(report.nodeid)
        if match is None or (report.when != "call" and report.passed):
            return
        case = self.outcomes.setdefault(match["case"].upper(), {})
        what = match["what"].replace("_", " ")
        case[what] = report.outcome if case.get(what) != "failed" else "failed"


def main(arguments: list[str]) -> int:
    """Run the field cases and print the table."""
    results = Results()
    words = ["-q", "--no-header", "-m", "slow or not slow", str(FOLDER), *arguments]
    code = pytest.main(words, plugins=[results])
    missing = [case for case in CASES if case not in results.outcomes]
    print(f"\n{'case':5} {'outcome':8} what holds")
    for case in filter(results.outcomes.__contains__, CASES):
        for what, outcome in results.outcomes[case].items():
            print(f"{case:5} {outcome:8} {what}")
    for case in missing:
        print(f"{case:5} {'no test':8}")
    return int(bool(code) or bool(missing))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
