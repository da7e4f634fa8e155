"""Quantization-aware training: a model that learns with rounded weights."""
