"""Delivery of examples to training: their order, prefetching, and batches."""
