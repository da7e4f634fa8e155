"""Curriculum learning: the examples that each stage trains on."""
