"""The files that a run writes about itself, read while they grow or when they are torn."""
