"""Fixtures of the notebook's side."""

from tests.fakes.google_colab import colab_session

__all__ = ["colab_session"]
