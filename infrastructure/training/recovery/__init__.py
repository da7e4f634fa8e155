"""Decisions about errors during training, which the loop carries out."""
