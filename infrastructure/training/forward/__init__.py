"""Forward passes: gradients of a batch in pieces, and the loss on held-out examples."""
