"""What `make test` leaves to `make test-slow`: what takes longest of all.

Further cases of a test whose first case always runs, storms of a kind that has a shorter one, more
planted defects, long forms of what a shorter test shows, and single tests that wait for compilers,
launchers, installations, a whole notebook's kernel or 100,000 steps.
"""

from collections.abc import Iterable
from typing import Any

import pytest

slow = pytest.mark.slow


def slow_but(quick: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """The values of a parametrised test; those that are not in `quick` are slow."""
    kept, all_values = list(quick), list(values)
    assert all(value in all_values for value in kept)  # another value would test nothing
    return [value if value in kept else _marked(value) for value in all_values]


def _marked(value: Any) -> Any:
    several = value if isinstance(value, tuple) else (value,)
    return pytest.param(*several, marks=slow)
