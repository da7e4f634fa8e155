"""Layer 3: loading, checking and saving of models."""
