"""Layer 2: what users see of a run: its metrics in a file, in a table, in a report."""
