"""Search for the fastest inference method of a model, by measurement: `temper bench`."""
