"""Checks of quantization-aware training that can run before PyTorch is imported."""

import re
from pathlib import Path
from typing import Any

from infrastructure.core.errors import InputError
from infrastructure.core.messages import Setting
from infrastructure.core.optional import refuse_missing
from infrastructure.models.saved_model import NOT_ROUNDED, read_json, shapes_of
from infrastructure.monitoring.records.run_list import FINAL

GROUP_SIZE = 32  # weights of a row that share a scale
CONV1D_MODELS = ("gpt2", "openai-gpt")  # their layers are not torch.nn.Linear
_IS_ON = "model.quantization_aware"

CONTRADICTIONS = (
    ("quantization_aware.with_lora", _IS_ON, "model.lora_config"),
    ("quantization_aware.with_quantized_model", _IS_ON, "model.quantization"),
    ("quantization_aware.with_unsloth", _IS_ON, "model.backend=unsloth"),
    ("quantization_aware.with_strategy", _IS_ON, "strategy=progressive|end_to_end"),
)
ADDED_WEIGHTS = (("quantization_aware.with_added_weights", _IS_ON),)
SHARDED = (("quantization_aware.with_sharding", _IS_ON),)


def check_files(config: Any) -> None:
    """Check that torchao is installed, and that it can round the layers of the model.

    A folder without a saved model is accepted.

    Raises:
        MissingPackageError: torchao is not installed.
        ValueError: a layer cannot be rounded. The message names the layer or the kind of model.
    """
    model = config.model
    if model.quantization_aware is None:
        return
    refuse_missing("torchao", "model.quantization_aware")
    if model.name == "embedded":
        _check_embedded(model.embedded)
    path = Path(model.name).expanduser()
    folder = next((f for f in (path, path / FINAL) if (f / "config.json").is_file()), None)
    if folder is None:
        return
    saved = read_json(folder / "config.json")
    if "vision_config" in saved:
        raise InputError("quantization_aware.text_models_only")
    if saved.get("model_type") in CONV1D_MODELS:
        raise InputError("quantization_aware.conv1d_layers", model_type=saved["model_type"])
    for name, shape in shapes_of(folder).items():
        layer, _, last = name.rpartition(".")
        own_name = layer.rpartition(".")[2]
        is_layer = last == "weight" and len(shape) == 2 and own_name not in NOT_ROUNDED
        if is_layer and not re.search("emb|bias", own_name):
            check_row(layer, shape[1])


def check_row(layer: str, width: int) -> None:
    """Check that the rows of a layer can be divided into groups that share a scale.

    Raises:
        ValueError: the width is not a multiple of the group's size.
    """
    if width % GROUP_SIZE:
        raise InputError(
            "quantization_aware.row_size", layer=layer, width=width, group_size=GROUP_SIZE
        )


def _check_embedded(shape: Any) -> None:
    for name in ("hidden_size", "intermediate_size"):
        width = getattr(shape, name)
        if width % GROUP_SIZE:
            raise InputError(
                "quantization_aware.embedded_width",
                group_size=GROUP_SIZE,
                setting=Setting(f"model.embedded.{name}"),
                width=width,
                wider=(width // GROUP_SIZE + 1) * GROUP_SIZE,
            )
