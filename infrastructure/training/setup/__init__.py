"""Preparation of a trainer before it runs: limits of the machine, and stacks with their plan."""
