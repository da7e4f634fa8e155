"""Preparing data once: the plan, the pass over all rows, what is set aside, the report."""
