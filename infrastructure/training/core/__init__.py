"""The basis of all parts of a run: its state, precision, metric sums and kinds of errors."""
