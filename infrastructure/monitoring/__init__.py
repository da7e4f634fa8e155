"""Layer 2: the monitoring of a run: metrics files, tables, the live page, the report."""
