"""The processor of a vision-language model, which converts images to pixels and tokens.

transformers' own processor is loaded from the model's folder and saved with the model, so that
images are always converted as in training.
"""

from typing import Any

from infrastructure.core.errors import InputError, MissingPackageError
from infrastructure.core.optional import is_installed, require
from infrastructure.models.saved_model import check_tokenizer, has_processor, read_json
from infrastructure.models.source import ModelSource, SourceKind
from infrastructure.models.transformers_backend import (
    LoadOptions,
    base_of_lora,
    ensure_special_tokens,
    hub_arguments,
    shortened,
)


def sees_pictures(source: ModelSource) -> bool:
    """Return whether a saved model is a vision-language model. False for a Hub model."""
    if source.kind is SourceKind.LORA_FOLDER:
        source = base_of_lora(source.folder)
    is_folder = source.kind is SourceKind.FOLDER
    return is_folder and "vision_config" in read_json(source.folder / "config.json")


def load_processor(source: ModelSource, options: LoadOptions) -> Any:
    """Load a model's processor, and make sure that its tokenizer has an end and a padding token.

    Raises:
        ValueError: the model has no processor, or the processor is damaged.
        MissingPackageError: the processor needs a package that is not installed.
    """
    transformers = require("transformers", "models.load_processor")
    require("PIL", "data.decode_images")
    if source.kind is not SourceKind.HUB:
        check_tokenizer(source.folder)
        if not has_processor(source.folder):
            raise InputError("models.processor_missing", location=source.location)
    try:
        processor = transformers.AutoProcessor.from_pretrained(
            source.location, **hub_arguments(source, options)
        )
    except (OSError, ValueError, KeyError, TypeError, ImportError, RecursionError) as error:
        reason = shortened(" ".join(str(error).split()))
        if "torchvision" in reason.lower() and not is_installed("torchvision"):
            raise MissingPackageError(
                "models.processor_needs_torchvision", location=source.location
            ) from error
        raise InputError(
            "models.processor_not_loaded", location=source.location, reason=reason
        ) from error
    tokenizer = getattr(processor, "tokenizer", None)
    if tokenizer is None or getattr(processor, "image_processor", None) is None:
        raise InputError(
            "models.processor_without_images",
            location=source.location,
            name=type(processor).__name__,
        )
    ensure_special_tokens(tokenizer, source.location)
    tokenizer.chat_template = tokenizer.chat_template or processor.chat_template
    return processor
