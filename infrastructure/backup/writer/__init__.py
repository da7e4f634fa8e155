"""A helper process that writes checkpoints from a copy of the state in shared memory."""
