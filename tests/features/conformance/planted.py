"""How a suite is shown able to fail: a defect for each of its tests."""

import inspect
from collections.abc import Collection
from pathlib import Path
from typing import Any
from unittest import SkipTest


def tests_of(suite: type) -> list[str]:
    """The names of a suite's tests."""
    found = inspect.getmembers(suite, inspect.isfunction)
    return [name for name, _ in found if name.startswith("test_")]


def failure(suite: Any, test: str, folder: Path) -> str | None:
    """The sentence with which a test of a suite fails; None: it does not."""
    try:
        getattr(suite, test)(folder)
    except AssertionError as error:
        return str(error)
    except SkipTest as error:  # which pytest would take for a skipped test of ours
        return f"skipped: {error}"
    return None


def without_defect(suite: type, planted: Collection[str]) -> list[str]:
    """The tests of a suite that no planted defect is for."""
    return [name for name in tests_of(suite) if name not in planted]
