"""Preparation of a trainer before it runs: limits of the machine, stacks and their plan."""
