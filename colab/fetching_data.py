"""`colab.fetch_dataset`: download data from any source, and return its path.

Broken data is never accepted: a stored file is complete, matches its hash if one is given, and is
not a web page. Data is downloaded only once.
"""

import re
import shutil
from pathlib import Path

from colab.data_shelf import Shelf
from colab.data_source import HUB_FILE, KNOWN, find_remote
from colab.hub_data import fetch_hub_file
from colab.remote_files import RemoteFile
from colab.transfer import Patience, Transfer, safe_name
from infrastructure.core.errors import DataError, InputError
from infrastructure.core.files import file_sha256
from infrastructure.core.messages import phrase
from infrastructure.data.readers.sources import refuse_no_data
from infrastructure.monitoring.drawing.formatting import format_bytes
from infrastructure.run.progress_bar import byte_bar

TIMEOUT_SECONDS = 2 * 3600.0
SHA256 = re.compile(r"[0-9a-f]{64}")
PATIENCE = Patience()


def fetch_dataset(
    source: str | Path,
    sha256: str | None = None,
    folder: str | Path | None = None,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Path:
    """Fetch training data to this machine. A second call finds the data, without a network.

    Args:
        source: a path (a file on a mounted Drive is copied here), an http(s) address, the link or
            id of a file on Google Drive (a Google Sheet comes as CSV), or
            `hf://datasets/OWNER/NAME/FILE`. A whole dataset of the Hub needs no download: it is
            read by its name.
        sha256: the hash that the file must have, in hex.
        folder: the folder for the data; by default, a separate folder in Temper's cache.
        timeout_seconds: the time limit of a transfer. Bytes that arrived until then are kept, and
            the next call resumes with them, as after an interruption or a kill.

    Returns:
        The file, or `source` if it is a folder.

    Raises:
        ValueError: if `source` cannot be fetched, or a file of the user has the same name.
        DataError: if the data did not arrive, is not data, or has another hash; it is then removed.
        StorageError: if the disk has too little free space.
    """
    wanted, text = _checked_hash(sha256), str(source)
    where = None if folder is None else Path(folder)
    remote = find_remote(text, PATIENCE.silence_seconds)
    if remote is not None:
        return fetch_file(remote, wanted, where, timeout_seconds)
    if text.startswith(HUB_FILE):
        return fetch_from_hub(text, wanted, where)
    path = Path(text).expanduser().absolute()
    if text and path.exists():
        return _local(path, wanted)
    raise InputError("notebook.nothing_to_fetch", source=text, known=phrase(KNOWN))


def fetch_file(
    remote: RemoteFile,
    sha256: str | None,
    folder: Path | None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    patience: Patience = PATIENCE,
) -> Path:
    """Fetch one remote file to this machine; see `fetch_dataset`."""
    with Shelf(folder, remote.identity) as shelf:
        if fetched := shelf.fetched(sha256, remote.version_now()):
            return _reported("Here already", fetched)
        with byte_bar(f"fetching {remote.shown}") as on_progress:
            transfer = Transfer(
                remote,
                shelf.work,
                shelf.accept,
                is_checked=sha256 is not None,
                timeout_seconds=timeout_seconds,
                patience=patience,
                on_progress=on_progress,
            )
            part, version = _bring(transfer, sha256)
        return _keep(shelf, part, version, sha256, phrase(remote.advice))


def _bring(transfer: Transfer, sha256: str | None) -> tuple[Path, str | None]:
    """Transfer the file. If a resumed transfer gives a wrong hash, transfer it a second time."""
    part, version = transfer.bring()
    if transfer.was_resumed and sha256 not in (None, file_sha256(part)):
        transfer.discard()
        return transfer.bring()
    return part, version


def fetch_from_hub(
    address: str, sha256: str | None, folder: Path | None, endpoint: str | None = None
) -> Path:
    """Fetch the file at an `hf://` address with huggingface_hub; see `fetch_dataset`."""
    with Shelf(folder, address) as shelf:
        if fetched := shelf.fetched(sha256, None):
            return _reported("Here already", fetched)
        shelf.accept(safe_name(address))
        part = fetch_hub_file(address, shelf.work, endpoint)
        return _keep(shelf, part, None, sha256, phrase("notebook.check_file_on_hub"))


def _local(path: Path, sha256: str | None) -> Path:
    """Return a local path unchanged, after comparing the file with its hash if one is given."""
    if path.is_dir():
        if sha256 is not None:
            raise InputError("notebook.hash_of_no_file", source=path)
        return path
    _check(
        path, sha256, None if sha256 is None else file_sha256(path), phrase("notebook.check_file")
    )
    return path


def _keep(shelf: Shelf, part: Path, version: str | None, sha256: str | None, advice: str) -> Path:
    """Store a complete file if it is the requested one; otherwise delete it and raise an error."""
    digest, size_bytes = file_sha256(part), part.stat().st_size
    try:
        _check(part, sha256, digest, advice)
    except DataError:
        shutil.rmtree(shelf.work, ignore_errors=True)
        raise
    path = shelf.put(part, safe_name(part.name), digest, version)
    shutil.rmtree(shelf.work, ignore_errors=True)
    return _reported("Fetched", path, f" ({format_bytes(size_bytes)}, sha256={digest!r})")


def _check(path: Path, wanted: str | None, actual: str | None, advice: str) -> None:
    """Check that a file has the requested hash. Without a requested hash, check that it is data.

    Raises:
        DataError: if the check fails; the message says what the file is and what to do.
    """
    if wanted is not None and actual != wanted:
        raise DataError("notebook.hash_differs", file=path.name, actual=actual, expected=wanted)
    if wanted is not None:
        return
    try:
        refuse_no_data(path, advice)
    except ValueError as error:
        raise DataError(str(error)) from error


def _checked_hash(sha256: str | None) -> str | None:
    """Return the hash in lower case.

    Raises:
        ValueError: if the text is not a SHA-256.
    """
    if sha256 is None:
        return None
    if not SHA256.fullmatch(sha256.lower()):
        raise InputError("notebook.not_a_sha256", value=sha256)
    return sha256.lower()


def _reported(what: str, path: Path, more: str = "") -> Path:
    print(f"{what}: {path}{more}")
    return path
