"""The training loop, its optimizer step, its checkpoints, and its recovery from errors."""
