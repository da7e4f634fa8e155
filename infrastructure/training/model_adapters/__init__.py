"""What a model is to the loop: how to feed it and how to read its loss."""
