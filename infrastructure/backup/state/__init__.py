"""The state of a training as tensors and JSON values, and back."""
