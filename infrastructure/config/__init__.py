"""Layer 1: the configuration and where each value came from. Knows no torch."""
