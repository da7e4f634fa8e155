"""Layer 2: fitting a run to its machine. It knows models and tensors, but no training loop."""
