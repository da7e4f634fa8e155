"""The Hugging Face hub: whether it answers, and single small files of a model there.

Loads no torch; nothing is asked of the hub that lies in its cache on this machine.
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
from infrastructure.core.json_text import JsonObject, as_object, parse_json
from infrastructure.core.optional import require

CONNECT_SECONDS = 5.0
_TRUE = ("1", "on", "yes", "true")


class NotOnHubError(InputError):
    """Neither the cache nor the hub has the model.

    Attributes:
        hub_reachable: whether the hub has said so.
    """

    def __init__(self, name: str, *, hub_reachable: bool) -> None:
        super().__init__(name)
        self.hub_reachable = hub_reachable


def reads_like_path(name: str) -> bool:
    """Whether the name of a model can only be a folder's, and none of the hub's."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or not name.strip()


def hub_is_reachable() -> bool:
    """Whether the hub answers at its address, or a proxy stands before it."""
    # as huggingface_hub reads them, which does so once and for all when it is imported
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
    """Where the hub cannot be reached, look into its cache only.

    Its client would retry every file for half a minute, and transformers asks for some files
    even when it is told to use local ones only.

    Args:
        settings: modules with an HF_HUB_OFFLINE of their own.
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
    """Where the data sets of earlier downloads lie."""
    constants: Any = require("huggingface_hub.constants", "the Hugging Face hub")
    own = os.environ.get("HF_DATASETS_CACHE")
    return Path(own).expanduser() if own else Path(constants.HF_HOME) / "datasets"


def cached_file(name: str, file: str, revision: str | None = None) -> Path | None:
    """A file of a hub model that an earlier download left on this machine."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, file, revision=revision)
    except HFValidationError:  # no name of the hub at all
        return None
    return Path(cached) if isinstance(cached, str) else None


def hub_file(name: str, file: str, revision: str | None = None) -> Path | None:
    """A file of a hub model, from the cache or fetched; None where the model lacks it, or it
    cannot be had for a reason that loading the model tells better.

    Raises:
        NotOnHubError: there is no such model.
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
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise NotOnHubError(name, hub_reachable=True) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError):
        return None


def json_of(path: Path | None) -> JsonObject:
    """What a JSON file holds; empty where it cannot be read, which is told where it is used."""
    try:
        return {} if path is None else as_object(parse_json(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}
