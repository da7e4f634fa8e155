"""Hooks that observe and change nothing: numbers, monitor, profiler, early stopping."""
