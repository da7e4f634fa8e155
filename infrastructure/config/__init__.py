"""Layer 1: the configuration and the source of each value. It does not depend on torch."""
