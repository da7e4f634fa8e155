"""Resuming of a run: which settings and parts must be unchanged, and which may differ."""
