"""Hooks that may change the training state, and the events they hang on."""
