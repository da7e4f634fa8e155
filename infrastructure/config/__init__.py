"""Layer 1: the configuration and the source of each value. Does not depend on torch."""
