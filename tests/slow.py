"""What only `make test-slow` runs: whole storms, defects planted by the dozen, cases beside a case.

Each of them has a quicker test beside it that `make test` runs.
"""

from collections.abc import Iterable
from typing import Any

import pytest

slow = pytest.mark.slow


def slow_but(quick: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """The values of a parametrised test; those that are not in `quick` are slow."""
    kept = list(quick)
    return [value if value in kept else _marked(value) for value in values]


def _marked(value: Any) -> Any:
    several = value if isinstance(value, tuple) else (value,)
    return pytest.param(*several, marks=slow)
