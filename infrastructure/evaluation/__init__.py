"""Layer 5: evaluation of a trained model on held-out data."""
