"""Hooks that observe a run without changing it: metrics, monitor, early stopping."""
