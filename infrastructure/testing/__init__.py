"""Layer 5: checks before a run, and conformance test suites for user-defined parts."""
