"""Access to the Hugging Face Hub: a check whether it is reachable, and small files of models.

This module does not load torch. Files in the Hub's cache on this machine are not requested again.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from infrastructure.core.errors import InputError
from infrastructure.core.optional import require

CONNECT_SECONDS = 5.0
_TRUE = ("1", "on", "yes", "true")


class NotOnHubError(InputError):
    """An error for a model that is neither in the local cache nor on the Hub.

    Attributes:
        hub_reachable: whether the Hub answered that there is no such model, instead of being
            unreachable.
    """

    def __init__(self, name: str, *, hub_reachable: bool) -> None:
        super().__init__(name)
        self.hub_reachable = hub_reachable


def reads_like_path(name: str) -> bool:
    """Return whether a model name must be the path of a folder and cannot be a name on the Hub."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or not name.strip()


def hub_is_reachable() -> bool:
    """Return whether the Hub can be reached. Behind a proxy, this is assumed."""
    # read as huggingface_hub does, which reads them only once, on import
    offline = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    if offline.lower() in _TRUE:
        return False
    hub = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    host = hub.hostname or ""
    if getproxies().keys() & {hub.scheme, "all"} and not proxy_bypass(host):
        return True
    port = hub.port or (80 if hub.scheme == "http" else 443)
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


@contextmanager
def offline_where_unreachable(*settings: Any) -> Iterator[None]:
    """Return a context that uses only the Hub's local cache if the Hub cannot be reached.

    Otherwise the Hub's client would retry each file for half a minute, because transformers
    requests some files even with `local_files_only`.

    Args:
        settings: further modules in which the variable HF_HUB_OFFLINE is set, too.
    """
    constants: Any = require("huggingface_hub.constants", "the Hugging Face hub")
    modules = (constants, *settings)
    was_offline = [module.HF_HUB_OFFLINE for module in modules]
    is_offline = any(was_offline) or not hub_is_reachable()
    for module in modules:
        module.HF_HUB_OFFLINE = is_offline
    try:
        yield
    finally:
        for module, was in zip(modules, was_offline, strict=True):
            module.HF_HUB_OFFLINE = was


def data_sets_folder() -> Path:
    """Return the folder to which data sets are downloaded."""
    constants: Any = require("huggingface_hub.constants", "the Hugging Face hub")
    own = os.environ.get("HF_DATASETS_CACHE")
    return Path(own).expanduser() if own else Path(constants.HF_HOME) / "datasets"


def cached_file(name: str, file: str, revision: str | None = None) -> Path | None:
    """Return a file of a Hub model from the cache on this machine; None if it is not cached."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, file, revision=revision)
    except HFValidationError:  # not a valid name on the Hub
        return None
    return Path(cached) if isinstance(cached, str) else None


def hub_file(name: str, file: str, revision: str | None = None) -> Path | None:
    """Return a file of a Hub model, from the cache or downloaded.

    Return None if the model does not have the file, or if the file is unavailable for a reason that
    loading the model reports better.

    Raises:
        NotOnHubError: if there is no such model, or the Hub cannot be reached.
    """
    if (cached := cached_file(name, file, revision)) is not None:
        return cached
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    if not hub_is_reachable():
        raise NotOnHubError(name, hub_reachable=False)
    try:
        return Path(hf_hub_download(name, file, revision=revision))
    except GatedRepoError:
        return None
    except (RepositoryNotFoundError, HFValidationError):
        raise NotOnHubError(name, hub_reachable=True) from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError):
        return None
