"""Temper in a trainer of transformers, TRL or Unsloth: a single callback."""

from infrastructure.training.hf_bridge.callback import TemperCallback as TemperCallback
