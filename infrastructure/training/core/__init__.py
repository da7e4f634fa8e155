"""What every part of a training shares: its state, precision, metric sums, kinds of errors."""
