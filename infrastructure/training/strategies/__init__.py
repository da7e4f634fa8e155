"""Training algorithms. A strategy yields phases and does a train step."""
