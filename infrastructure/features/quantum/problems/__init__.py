"""Training decisions as binary optimization problems, each with its baselines."""
