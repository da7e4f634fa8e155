"""Fitting a training to the memory and time there are: batches, measured costs, compiling."""
