"""Conversion of a training state to tensors and JSON values, and back."""
