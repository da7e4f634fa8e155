"""Faster ways to compute on a CPU. Without them, the results are the same up to rounding."""
