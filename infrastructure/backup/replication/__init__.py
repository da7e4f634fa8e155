"""Copying versions and finished folders to a backup destination, and fetching them from there."""
