"""Fixtures for the notebook's side."""

from collections.abc import Iterator

import pytest

from tests.colab.file_server import FileServer, running_file_server


@pytest.fixture
def server() -> Iterator[FileServer]:
    """A web server on this machine that serves nothing yet."""
    with running_file_server() as running:
        yield running
