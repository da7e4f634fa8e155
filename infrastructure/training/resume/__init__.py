"""Going on with a run: what has to be as it was, and what may change."""
