"""Temper's checkpoints, backup and monitoring for trainers of transformers, TRL or Unsloth."""

from infrastructure.training.hf_bridge.callback import TemperCallback as TemperCallback
