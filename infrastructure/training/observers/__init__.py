"""Hooks that look and change nothing: numbers, monitor, profiler, early stopping."""
