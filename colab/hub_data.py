"""A file of a repository on the Hugging Face Hub."""

import hashlib
from pathlib import Path

import httpx

from colab.transfer import require_free_space
from infrastructure.core.errors import DataError, InputError
from infrastructure.core.files import file_sha256
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.core.redact import redact


def fetch_hub_file(address: str, folder: Path, endpoint: str | None = None) -> Path:
    """Download the file of `hf://datasets/OWNER/NAME[@REVISION]/PATH` into `folder`.

    huggingface_hub compares only the size of the download. So the commit is fixed at the beginning,
    and the bytes are compared with the hash that the Hub reports.

    Args:
        endpoint: the address of the Hub; by default, that of huggingface_hub.

    Raises:
        ValueError: if the address does not name a file.
        DataError: if the Hub does not provide the file, or its bytes do not match its hash.
        StorageError: if the disk has too little free space.
    """
    why = phrase("notebook.hub_files")
    hub, errors = require("huggingface_hub", why), require("huggingface_hub.errors", why)
    uri = require("huggingface_hub.utils", why).parse_hf_uri(address)
    if not uri.path_in_repo or ".." in uri.path_in_repo.split("/"):
        raise InputError("notebook.hub_address_without_file", address=address)
    file = {"repo_id": uri.id, "filename": uri.path_in_repo, "repo_type": uri.type}
    try:
        url = hub.hf_hub_url(**file, revision=uri.revision, endpoint=endpoint)
        named = hub.get_hf_file_metadata(url)
        require_free_space(address, folder, named.size or 0)
        revision = named.commit_hash or uri.revision
        path = Path(
            hub.hf_hub_download(**file, revision=revision, local_dir=folder, endpoint=endpoint)
        )
    except (OSError, httpx.HTTPError, errors.EntryNotFoundError) as error:
        reason = redact(str(error)).strip().splitlines()[0]
        raise DataError("notebook.hub_file_not_fetched", address=address, error=reason) from error
    if named.etag not in (file_sha256(path), _git_hash(path)):
        path.unlink()
        raise DataError("notebook.hub_file_damaged", address=address)
    return path


def _git_hash(path: Path) -> str:
    """Return the git blob hash of a file, which the Hub uses for files outside Git LFS."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
