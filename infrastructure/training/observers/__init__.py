"""Hooks that observe a run and change nothing: numbers, monitor, profiler, early stopping."""
