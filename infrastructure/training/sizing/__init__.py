"""Fitting a training to the available memory and time: batches, measured costs, compiling."""
