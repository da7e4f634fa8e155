"""Recording of some steps of a run with the PyTorch profiler."""
