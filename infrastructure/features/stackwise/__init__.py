"""Block-wise training: groups of layers train one after another, or each with its own loss."""
