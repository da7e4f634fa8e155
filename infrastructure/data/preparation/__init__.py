"""One-time preparation of the data: the plan, the pass over all rows, skipped rows, the report."""
