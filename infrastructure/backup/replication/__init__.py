"""Copying versions and finished folders to a place, and bringing them back."""
