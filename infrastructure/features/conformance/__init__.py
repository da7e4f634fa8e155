"""Conformance test suites: what all parts of one kind must do, built-in or user-defined."""
