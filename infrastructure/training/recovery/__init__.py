"""Decisions about a run's own errors, which the loop requests and carries out."""
