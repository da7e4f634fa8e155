"""The training loop, its optimizer step, and its recovery from errors."""
