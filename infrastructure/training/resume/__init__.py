"""Resuming a run: what must be unchanged, and what may differ."""
