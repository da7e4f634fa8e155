"""Model loading: embedded, by transformers, by Unsloth, or registered by name."""
