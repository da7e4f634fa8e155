"""Layer 5: measuring a trained model on held-out data."""
