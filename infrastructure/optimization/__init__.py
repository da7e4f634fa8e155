"""Layer 2: fitting a training to its machine. Knows models and tensors, but no training loop."""
