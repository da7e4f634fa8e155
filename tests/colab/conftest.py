"""Fixtures of the notebook's side."""

from tests.colab.file_server import file_server
from tests.fakes.google_colab import colab_session

__all__ = ["colab_session", "file_server"]
