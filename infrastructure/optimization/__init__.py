"""Layer 2: fitting a run to its machine. Knows models and tensors, but no training loop."""
