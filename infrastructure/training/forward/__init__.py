"""Forward and backward passes over micro-batches, and the loss on held-out examples."""
