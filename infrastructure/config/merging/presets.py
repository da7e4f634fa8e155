"""Presets: groups of settings under one name.

A preset only proposes values. A setting that does not apply to the model or the method, or that
contradicts a setting that the user gave, keeps its default.

`preset` can be set like any setting: in a file, a notebook's cell, the environment
(`TEMPER_PRESET`), on the command line, as a keyword, or in a form. Only one preset applies: that of
the highest layer that names one. Its settings rank just below that layer, so the same layer can
override single settings of the preset.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PRESET = "preset"
NO_PRESET = "none"  # switches off the preset that a lower layer names
# Settings that no TRL trainer supports, with their values; an empty tuple: any value.
OWN_LOOP_ONLY: Mapping[str, tuple[object, ...]] = {
    "training.validation_prompts": (),
    "training.batch_size": ("auto",),
}


@dataclass(frozen=True)
class Preset:
    """A preset: settings by canonical key.

    Attributes:
        purpose: what the preset is for, in a few words.
    """

    purpose: str
    settings: Mapping[str, Any]


PRESETS = {
    "quick": Preset(
        "a first look with a few dozen steps and little evaluation",
        {
            "training.max_steps": 60,
            "training.warmup_steps": 6,
            "training.validation_prompts": 64,
        },
    ),
    "thorough": Preset(
        "the best result, in up to 10 epochs, as long as the held-out loss falls",
        {
            "training.num_epochs": 10,
            "training.early_stopping_patience": 2,
            "training.validation_prompts": 1000,
        },
    ),
    "small_memory": Preset(
        "LoRA, a measured batch size and gradient checkpointing, for a model that barely fits",
        {
            "model.lora_config": True,
            "training.batch_size": "auto",
            "training.gradient_checkpointing": True,
        },
    ),
    "ci": Preset(
        "a test that everything works, with a tiny new model and six steps, in seconds on a CPU",
        {
            "model.name": "embedded",
            "model.backend": "auto",
            "model.quantization": None,
            "model.embedded.hidden_size": 32,
            "model.embedded.num_layers": 2,
            "model.embedded.num_heads": 2,
            "model.embedded.intermediate_size": 64,
            "data.max_length": 512,
            "data.num_workers": 0,
            "training.batch_size": 8,
            "training.gradient_accumulation": 1,
            "training.max_steps": 6,
            "training.warmup_steps": 1,
            "training.checkpoint_frequency": 2,
            "training.validation_frequency": 3,
            "training.validation_prompts": 8,
        },
    ),
}
