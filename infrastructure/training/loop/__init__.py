"""The training loop, its optimizer step, and how it gets over errors."""
