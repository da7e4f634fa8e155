"""Copying of checkpoints and finished folders to a backup destination, and from it."""
