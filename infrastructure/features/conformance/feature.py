"""Conformance test suites for user-defined parts; they are imported, so they need no door."""

from infrastructure.core.features import Feature

FEATURE = Feature(name="conformance")
