"""Exit codes are those of shells, and the page about going on has each of them."""

import re
from pathlib import Path

import pytest

from infrastructure.core.exit_codes import ExitCode, exit_code_of_signal

PAGE = Path(__file__).resolve().parents[2] / "docs/when-the-machine-goes-away.md"


def test_the_page_lists_each_and_no_other() -> None:
    table = PAGE.read_text().partition("## Exit codes\n")[2].partition("\n## ")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == [*ExitCode]


@pytest.mark.parametrize(("name", "code"), [("SIGHUP", 129), ("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_has_the_code_of_shells(name: str, code: int) -> None:
    assert exit_code_of_signal(name) == code
