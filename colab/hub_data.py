"""Data on the Hugging Face Hub: one file of a repository, or a whole data set by its name."""

from functools import partial
from pathlib import Path

import httpx

from colab.transfer import require_free_space
from infrastructure.core.errors import DataError
from infrastructure.core.files import whole_directory
from infrastructure.core.optional import require
from infrastructure.core.redact import redact
from infrastructure.training.data.readers.table_formats import load_huggingface

ADVICE = "check the name; for what is not public, set HF_TOKEN to a token that may read it"


def fetch_hub_file(address: str, folder: Path, endpoint: str | None = None) -> Path:
    """Bring the file of `hf://datasets/OWNER/NAME[@REVISION]/PATH` into `folder`.

    huggingface_hub does it: it goes on with what is there, and compares what came with what the
    Hub says of it.

    Args:
        endpoint: address of the Hub; None: as huggingface_hub has it.

    Raises:
        ValueError: the address names no file.
        DataError: the Hub does not give it.
        StorageError: the disk has too little free space for it.
    """
    why = "files on the Hugging Face Hub"
    hub, errors = require("huggingface_hub", why), require("huggingface_hub.errors", why)
    uri = require("huggingface_hub.utils", why).parse_hf_uri(address)
    if not uri.path_in_repo or ".." in uri.path_in_repo.split("/"):
        raise ValueError(f"{address} names no file: write hf://datasets/OWNER/NAME/FILE")
    download = partial(
        hub.hf_hub_download,
        uri.id,
        uri.path_in_repo,
        repo_type=uri.type,
        revision=uri.revision,
        local_dir=folder,
        endpoint=endpoint,
    )
    try:
        require_free_space(address, folder, download(dry_run=True).file_size)
        return Path(download())
    except (OSError, httpx.HTTPError, errors.EntryNotFoundError) as error:
        reason = redact(str(error)).strip().splitlines()[0]
        raise DataError(f"{address} did not come: {reason} To do: {ADVICE}") from error


def save_hub_dataset(name: str, folder: Path) -> None:
    """Write the data set `OWNER/NAME[:CONFIGURATION][@SPLIT]` into `folder`, whole or not at all.

    Raises:
        ValueError: there is no such data set, configuration or split.
        StorageError: the disk has too little free space for it.
    """
    dataset = load_huggingface(name)
    require_free_space(name, folder.parent, dataset.data.nbytes)
    with whole_directory(folder) as part:
        dataset.save_to_disk(part)
