"""Layer 4: measuring a trained model on held-out data."""
