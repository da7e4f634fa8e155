"""The publication of models on the Hugging Face Hub, and the card of a model."""
