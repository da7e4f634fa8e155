"""A check before the first step that the trained model can be saved.

All files except the weights are written and read once, after invalid settings in them are fixed or
rejected. A setting that transformers can read but not write would otherwise fail only at the end of
a run.
"""

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.models.answer_end import GENERATION_FILE, teach_ends
from infrastructure.models.model_inputs import inner_model
from infrastructure.models.quantization import quantized_layers
from infrastructure.models.refusals import refuse_quantized_base
from infrastructure.models.saving import write_description

# Generation settings that plain `generate` does not use, and that keep the configuration from being
# written.
SAMPLING_ONLY = (
    *("temperature", "top_p", "top_k", "min_p", "top_h", "typical_p"),
    *("epsilon_cutoff", "eta_cutoff"),
)
BEAMS_ONLY = ("early_stopping", "length_penalty", "num_beam_groups", "diversity_penalty")
OUTPUTS_ONLY = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def prepare_saving(model: torch.nn.Module, end_token_ids: Collection[int]) -> list[str]:
    """Add the training data's end tokens to the model's configuration, and test saving the model.

    Args:
        model: any module. Only a transformers model is changed.
        end_token_ids: the tokens that end an answer in the training data.

    Returns:
        Notes on what was changed.

    Raises:
        ValueError: the trained model could not be saved or loaded. The message says what to do.
    """
    inner: Any = inner_model(model)
    if not isinstance(inner, require("transformers", "models.save_model").PreTrainedModel):
        return []
    if quantized_layers(inner) and not hasattr(model, "peft_config"):
        refuse_quantized_base(str(inner.name_or_path))
    notes = make_writable(inner)
    teach_ends(model, end_token_ids)
    _rehearse(model, inner)
    return notes


def make_writable(model: Any) -> list[str]:
    """Remove settings without effect that prevent a model's generation configuration from being
    saved.

    A configuration that can be saved stays unchanged.

    Returns:
        A note on what was removed.
    """
    config = getattr(model, "generation_config", None)
    if config is None or _is_writable(config):
        return []
    unused: list[str] = []
    unused += [] if config.do_sample is True else SAMPLING_ONLY
    unused += [] if (config.num_beams or 1) > 1 else [*BEAMS_ONLY, "num_return_sequences"]
    unused += [] if config.return_dict_in_generate else OUTPUTS_ONLY
    if isinstance(config.pad_token_id, int) and config.pad_token_id < 0:
        unused.append("pad_token_id")
    usual, changed = type(config)(), []
    for name in unused:
        if getattr(config, name, None) != getattr(usual, name, None):
            changed.append(f"{name} {getattr(config, name)}")
            setattr(config, name, getattr(usual, name, None))
    if not changed:
        return []
    return [
        phrase(
            "models.generation_settings_removed",
            file=GENERATION_FILE,
            names=", ".join(changed),
        )
    ]


def _is_writable(config: Any) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        try:
            config.save_pretrained(folder)
        except (ValueError, TypeError, AttributeError):
            return False
    return True


def _rehearse(model: torch.nn.Module, inner: Any) -> None:
    """Write everything except the weights to a temporary folder, and load it.

    Raises:
        ValueError: writing or loading fails; the message comes from transformers or PEFT.
    """
    transformers = require("transformers", "models.save_model")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            write_description(model, folder)
            if (folder / "config.json").is_file() and not inner.config.__module__.startswith(
                "transformers_modules"  # code that comes with the model
            ):
                transformers.AutoConfig.from_pretrained(folder)
            if (folder / GENERATION_FILE).is_file():
                transformers.GenerationConfig.from_pretrained(folder)
        except Exception as error:  # any error of the library would end the save
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise InputError(
                "models.model_cannot_be_saved",
                name=inner.name_or_path,
                reason=reason,
                file=GENERATION_FILE,
            ) from error
