"""Layer 6: assembly of whole runs."""
