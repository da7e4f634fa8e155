"""Preparation of data for training: the plan, the pass over all rows, skipped rows, the report."""
