"""Layer 6: putting a whole run together."""
