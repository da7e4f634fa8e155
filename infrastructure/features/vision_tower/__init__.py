"""A vision encoder that is added to a text model, and its training."""
