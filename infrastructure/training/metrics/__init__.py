"""Numbers of a run on their way out: the metrics logger, its sinks, and the progress display."""
