"""Copiers that a test made hold threads and locks: they are closed after it."""

from collections.abc import Iterator

import pytest

from tests.backup.replication.test_copier import COPIERS


@pytest.fixture(autouse=True)
def close_copiers() -> Iterator[None]:
    yield
    while COPIERS:
        COPIERS.pop().close()
