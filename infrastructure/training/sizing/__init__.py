"""Fitting a run to memory and time: batch sizes, measured costs, compiling."""
