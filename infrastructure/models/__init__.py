"""Layer 3: loading of models: the embedded one, by transformers or Unsloth, or by name."""
