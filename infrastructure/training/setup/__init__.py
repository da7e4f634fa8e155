"""Adjustment of a trainer to the machine before the run starts."""
