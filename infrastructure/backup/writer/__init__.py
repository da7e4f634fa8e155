"""A helper process that commits versions from a copy in shared memory."""
