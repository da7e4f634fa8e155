"""The fastest way to answer with a model, by measurement: `temper bench`."""
