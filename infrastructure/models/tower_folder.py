"""Checks of a vision encoder's folder by its files, without importing torch."""

from pathlib import Path

from infrastructure.core.errors import InputError
from infrastructure.core.messages import Setting, phrase
from infrastructure.models.model_path import (
    refuse_file,
    refuse_missing,
    refuse_missing_on_hub,
)
from infrastructure.models.saved_model import (
    SourceKind,
    is_there,
    look_into,
    read_json,
    weight_files,
)

TOWER = Setting("training.multimodal.vision_tower")
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")

SUCH_AS = "models.give_vision_model"


def has_processor(folder: Path) -> bool:
    """Return whether a folder contains a transformers processor."""
    return any((folder / name).is_file() for name in PROCESSOR_FILES)


def check_tower(name: str) -> None:
    """Raise if a vision encoder does not exist, locally or on the Hub, or its folder lacks a file.

    Raises:
        ValueError: something is missing; the message names it and says what to do.
    """
    path = Path(name).expanduser()
    try:
        if not is_there(path):
            refuse_missing(name)
            refuse_missing_on_hub(name, files=phrase("models.vision_encoder_files"))
            return
        refuse_file(path)
        source = look_into(path.resolve())
        if source.kind is SourceKind.FOLDER:
            read_json(source.folder / "config.json")
            weight_files(source.folder)
    except ValueError as error:
        raise InputError("models.vision_encoder_unusable", key=TOWER, error=error) from error
    if source.kind is not SourceKind.FOLDER:
        raise InputError(
            "models.not_a_vision_model",
            key=TOWER,
            name=name,
            kind=source.kind,
            remedy=phrase(SUCH_AS),
        )
    if not has_processor(source.folder):
        raise InputError("models.image_processor_missing", key=TOWER, location=source.location)
