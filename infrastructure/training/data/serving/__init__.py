"""Giving examples to a training: in which order, ahead of need, as batches."""
