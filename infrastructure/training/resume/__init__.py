"""Resuming of a run: the settings and parts that must be unchanged, and those that may differ."""
