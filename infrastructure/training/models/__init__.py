"""Loading of models: the embedded model, by transformers, by Unsloth, or registered by name."""
