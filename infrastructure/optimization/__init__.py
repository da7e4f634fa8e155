"""Layer 2: fitting a run to its machine. It uses models and tensors, but no training loop."""
