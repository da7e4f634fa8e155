"""Types that all parts of training share: run state, precision, metric sums."""
