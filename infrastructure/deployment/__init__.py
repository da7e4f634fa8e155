"""Layer 6: the assembly of whole runs."""
