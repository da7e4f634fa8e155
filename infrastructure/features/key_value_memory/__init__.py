"""The key-value memory: weights and a store that a model reads after one of its layers."""
