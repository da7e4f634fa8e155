"""Layer 5: putting a whole run together."""
