"""Decisions of training that a sampler makes: what is measured for them, and what they change."""
