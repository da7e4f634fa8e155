"""Decisions about a run's own errors. The loop asks for them and applies them."""
