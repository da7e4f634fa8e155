"""The folder of a vision tower: what its files alone show. Loads no torch."""

from pathlib import Path

from infrastructure.training.models.model_path import (
    refuse_file,
    refuse_missing,
    refuse_missing_on_hub,
)
from infrastructure.training.models.saved_model import (
    SourceKind,
    is_there,
    look_into,
    read_json,
    weight_files,
)

TOWER = "training.multimodal.vision_tower"
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
TOWER_FILES = "config.json, preprocessor_config.json and safetensors"
SUCH_AS = "give a CLIP, a SigLIP, a ViT or a DINOv2"


def has_processor(folder: Path) -> bool:
    """Whether a folder holds a processor."""
    return any((folder / name).is_file() for name in PROCESSOR_FILES)


def check_tower(name: str) -> None:
    """Refuse a tower that is not there, nor on the hub, or whose folder lacks a file.

    Raises:
        ValueError: says what is missing, and what to do.
    """
    path = Path(name).expanduser()
    try:
        if not is_there(path):
            refuse_missing(name)
            refuse_missing_on_hub(name, files=TOWER_FILES)
            return
        refuse_file(path)
        source = look_into(path.resolve())
        if source.kind is SourceKind.FOLDER:
            read_json(source.folder / "config.json")
            weight_files(source.folder)
    except ValueError as error:
        raise ValueError(f"{TOWER}: {error}") from error
    if source.kind is not SourceKind.FOLDER:
        raise ValueError(f"{TOWER}: {name} is a {source.kind}, no vision model; {SUCH_AS}")
    if not has_processor(source.folder):
        raise ValueError(
            f"{TOWER}: {source.location} has no image processor (preprocessor_config.json is"
            " missing), so its pictures cannot be prepared; save the tower's own there with"
            " image_processor.save_pretrained"
        )
