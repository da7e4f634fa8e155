"""Committing versions in a helper process, from a copy in shared memory."""
