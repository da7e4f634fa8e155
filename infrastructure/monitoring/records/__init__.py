"""What a run writes of itself, and reading it while it grows or when it is torn."""
