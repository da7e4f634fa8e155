"""Layer 5: checks before a run, and conformance suites for user-defined parts."""
