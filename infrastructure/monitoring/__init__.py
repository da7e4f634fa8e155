"""Layer 2: the display of a run: metrics in a file, in tables, on a page, in a report."""
