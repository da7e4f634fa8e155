"""Layer 2: what people see of a run: its numbers in a file, in a table, in a report."""
