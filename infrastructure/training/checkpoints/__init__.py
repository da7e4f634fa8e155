"""Saving and restoring the whole state of a run."""
