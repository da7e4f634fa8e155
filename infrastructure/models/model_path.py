"""Checks of a model name that is a path on this machine, before anything is loaded.

This does not import torch.
"""

from pathlib import Path

from infrastructure.config.registries import REGISTERED_MODELS
from infrastructure.core.errors import InputError
from infrastructure.core.hub import NotOnHubError, hub_file, reads_like_path
from infrastructure.core.lookup import meant_hint, nearest
from infrastructure.core.messages import phrase
from infrastructure.monitoring.records.run_list import MODEL_NOT_FOUND as NOT_FOUND

EMBEDDED = "embedded"
GGUF_SUFFIX = ".gguf"


def refuse_file(path: Path) -> None:
    """Raise if the given path is a file, because a model must be a folder.

    Raises:
        ValueError: `path` is a file, or has the suffix of llama.cpp's files.
    """
    if path.suffix.lower() == GGUF_SUFFIX and not path.is_dir():
        raise InputError(
            "models.gguf_cannot_be_trained", path=path, gguf=phrase("config.gguf_is_exported")
        )
    if path.is_file():
        raise InputError("models.model_is_a_file", path=path)


def refuse_missing(name: str) -> None:
    """Raise ValueError if a model name looks like a local path, but does not exist."""
    refuse_file(Path(name))
    if reads_like_path(name):
        is_final = Path(name).name == "final"
        hint = (
            phrase("models.hint_run_model_folder")
            if is_final
            else phrase("models.hint_model_folder_or_run")
        )
        raise InputError("models.folder_missing", name=name, hint=meant_hint(_near(name)) or hint)


def refuse_missing_on_hub(
    name: str,
    revision: str | None = None,
    files: str = "models.language_model_files",
) -> None:
    """Raise ValueError if neither the Hub's cache nor one request to the Hub finds this model.

    Args:
        files: the code of the message that says which files a model folder contains.
    """
    if name == EMBEDDED or name in REGISTERED_MODELS:
        return
    try:
        hub_file(name, "config.json", revision)
    except NotOnHubError as error:
        raise not_found(name, hub_reachable=error.hub_reachable, files=files) from None


def not_found(
    name: str,
    *,
    hub_reachable: bool,
    files: str = "models.language_model_files",
) -> InputError:
    """Return the error for a name that is neither on this machine nor available from the Hub."""
    why = "models.not_on_hub" if hub_reachable else "models.hub_unreachable"
    meant = nearest(name, [*REGISTERED_MODELS, EMBEDDED]) or _near(name)
    return InputError(
        NOT_FOUND, name=name, reason=phrase(why), hint=meant_hint(meant), files=phrase(files)
    )


def _near(name: str) -> str | None:
    """Return the folder in the same parent folder with the most similar name, or None."""
    path = Path(name).expanduser()
    try:
        beside = [other.name for other in path.parent.iterdir() if other.is_dir()]
    except OSError:
        return None
    meant = nearest(path.name, beside)
    return None if meant is None else name.rstrip("/").removesuffix(path.name) + meant
