"""Curriculum learning: the choice of the examples that each stage trains on."""
