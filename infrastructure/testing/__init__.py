"""Layer 4: checks before a run."""
