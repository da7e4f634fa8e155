"""Layer 6 of the code: whole runs, from the preparation to the exported model."""
