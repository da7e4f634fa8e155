"""Faster kernels for CPUs. Without them, the results are the same up to rounding."""
