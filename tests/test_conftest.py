"""What tests/conftest.py does around every test."""

import logging
import os
import sys
from typing import Any

import pytest

from tests.conftest import is_silent, pytest_runtest_protocol

QUICK = {"outcome": "passed", "when": "setup", "sections": [], "duration": 0.001}


def test_logging_is_put_back_after_a_test() -> None:
    ours, root = logging.getLogger("infrastructure"), logging.getLogger()
    before = ours.level, root.level, list(root.handlers), root.manager.disable
    around = pytest_runtest_protocol()
    next(around)
    ours.setLevel(7)
    root.setLevel(8)
    root.addHandler(logging.NullHandler())
    logging.disable()
    assert not ours.isEnabledFor(logging.ERROR)  # which it remembers
    with pytest.raises(StopIteration):
        next(around)
    assert (ours.level, root.level, list(root.handlers), root.manager.disable) == before
    assert ours.isEnabledFor(logging.ERROR)


@pytest.mark.parametrize(
    "content",
    [
        {"when": "call"},
        {"outcome": "failed"},
        {"outcome": "skipped"},
        {"sections": [("Captured stdout setup", "something")]},
        {"duration": 0.3},
    ],
    ids=lambda content: next(iter(content)),
)
def test_what_shows_is_sent_by_a_worker(content: dict[str, Any]) -> None:
    assert is_silent(QUICK)
    assert not is_silent({**QUICK, **content})


def test_bytecode_is_kept() -> None:
    assert not sys.dont_write_bytecode
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ
