"""Shared by all parts of a training: its state, precision, metric sums and kinds of errors."""
