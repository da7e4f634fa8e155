"""Readers of the files that a run writes, even while they grow or if they are incomplete."""
