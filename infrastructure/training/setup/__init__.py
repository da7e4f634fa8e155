"""Preparation of a trainer before it runs: what fits the machine."""
