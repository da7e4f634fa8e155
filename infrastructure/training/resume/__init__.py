"""Going on with a run: what has to be as it was, what may change, and that one process does it."""
