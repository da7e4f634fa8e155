"""Fitting a run to the available memory and time: batches, measured costs, compiling."""
