"""Layer 5: checks before a run."""
