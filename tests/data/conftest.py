"""A small data set and a cache for the tests of the data part."""

from pathlib import Path

import pytest

from tests.data.builders import pairs, write_jsonl


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A hundred different rows of questions and answers."""
    return write_jsonl(tmp_path / "train.jsonl", pairs(100))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The directory of an empty cache."""
    return tmp_path / "cache"
