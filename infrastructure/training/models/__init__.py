"""Where a model comes from: embedded, transformers, unsloth, registered by name."""
