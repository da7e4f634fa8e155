"""Checks of a vision encoder that can run before PyTorch is imported."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infrastructure.config.merging.contradictions import (
    contradictions_in,
    with_rows_of_features,
)
from infrastructure.core.errors import InputError
from infrastructure.core.messages import Setting, phrase
from infrastructure.data.preparation.plan import first_rows, pictures_in
from infrastructure.data.readers.sources import HUGGINGFACE, may_be_on_the_hub
from infrastructure.features.vision_tower.config import MULTIMODAL
from infrastructure.models.model_path import (
    refuse_file,
    refuse_missing,
    refuse_missing_on_hub,
)
from infrastructure.models.saved_model import (
    SourceKind,
    has_processor,
    is_there,
    look_into,
    read_json,
    weight_files,
)

SUCH_AS = "vision_tower.give_vision_model"

CONTRADICTIONS = (
    ("vision_tower.not_set", "vision_encoder", "not training.multimodal.vision_tower"),
    ("vision_tower.on_new_model", "vision_encoder", "model.name=embedded"),
    ("vision_tower.with_quantized_model", "vision_encoder", "model.quantization"),
    ("vision_tower.with_unsloth", "vision_encoder", "model.backend=unsloth"),
    ("vision_tower.adapter_without_images", "vision_encoder", "not model.adapter=auto|multimodal"),
    ("vision_tower.strategy_has_phases", "vision_encoder", "not strategy=standard|finetune"),
)


def vision_encoder(config: Any) -> Setting | None:
    """Return the setting that adds a vision encoder, if it is enabled."""
    key = "training.enabled_extensions"
    return Setting(key, MULTIMODAL) if config.training.enables(MULTIMODAL) else None


def problems(config: Any) -> Iterator[str]:
    """Yield a message for each setting of another feature that new weights contradict."""
    if (key := vision_encoder(config)) is not None:
        yield from contradictions_in(with_rows_of_features((), "added_weights"), config, key=key)


def check_files(config: Any) -> None:
    """Check that the vision encoder exists, and that local rows contain images.

    Raises:
        ValueError: the encoder or the rows cannot be used.
    """
    name, data = config.training.multimodal.vision_tower, config.data
    if not config.training.enables(MULTIMODAL):
        return
    if name is not None:  # otherwise another check reports it
        check_tower(name)
    is_local = data.format != HUGGINGFACE and not may_be_on_the_hub(data.path or "")
    if data.path is not None and is_local:
        check_images(data)


def check_images(data: Any) -> None:
    """Check that the first rows of the training data contain images.

    Raises:
        ValueError: they contain none, or cannot be read.
    """
    if data.path is not None and not pictures_in(data):
        first_rows(data)  # problems of the rows themselves come first
        raise InputError("vision_tower.rows_without_images", path=data.path)


def check_tower(name: str) -> None:
    """Raise if a vision encoder does not exist, locally or on the Hub, or its folder lacks a file.

    Raises:
        ValueError: something is missing; the message names it and says what to do.
    """
    path = Path(name).expanduser()
    try:
        if not is_there(path):
            refuse_missing(name)
            refuse_missing_on_hub(name, files=phrase("vision_tower.files_of_encoder"))
            return
        refuse_file(path)
        source = look_into(path.resolve())
        if source.kind is SourceKind.FOLDER:
            read_json(source.folder / "config.json")
            weight_files(source.folder)
    except ValueError as error:
        raise InputError("vision_tower.unusable", error=error) from error
    if source.kind is not SourceKind.FOLDER:
        raise InputError(
            "vision_tower.not_a_vision_model",
            name=name,
            kind=source.kind,
            remedy=phrase(SUCH_AS),
        )
    if not has_processor(source.folder):
        raise InputError("vision_tower.image_processor_missing", location=source.location)
