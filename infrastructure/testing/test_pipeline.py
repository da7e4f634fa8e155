"""Checks of model, data and machine: come with part C; their name says so when it is imported."""

from infrastructure.core.lazy import lazy_names

__getattr__ = lazy_names(__name__, {}, {"create_test_pipeline": "C"})
