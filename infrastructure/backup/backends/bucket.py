"""A bucket on the Hugging Face Hub, created as private.

A bucket has no commit history, so removed files take no space, and the Hub's limit on commits does
not apply. Files are transferred by Xet, which identifies a file by its own kind of hash. To confirm
a file, Temper computes this hash from the written bytes and compares it with the hash that the Hub
lists. Files from other processes are read back.
"""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from infrastructure.backup.backends.base import Content, Evidence, require_content
from infrastructure.backup.backends.hub import HubPlace
from infrastructure.backup.format.file_operations import Buffer
from infrastructure.core.errors import StorageError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require

if TYPE_CHECKING:
    from huggingface_hub import BucketFile

START = "hf://buckets/"
MOST_REMOVALS = 100  # files in one request


class BucketPlace(HubPlace):
    """The folder of a bucket at `hf://buckets/OWNER/NAME[/folder]`.

    Args:
        endpoint: the address of the Hub; by default, that of huggingface_hub.

    Raises:
        ValueError: if the URL does not have this form.
    """

    def __init__(self, url: str, endpoint: str | None = None) -> None:
        super().__init__(url, endpoint)
        self._written: dict[str, tuple[Content, str]] = {}  # with their names in Xet
        self._removed: set[str] = set()

    def confirm(self, path: Path, content: Content) -> Evidence:
        try:
            info = self._file(path)
        except FileNotFoundError as error:
            raise StorageError("backup.uploaded_file_missing", path=self.shown(path)) from error
        written, name = self._written.get(self.at(path), (None, ""))
        if written is None:
            require_content(self, path, content)
            return Evidence.READ_BACK
        if (written.sha256, name, info.size) != (
            content.sha256,
            info.xet_hash,
            content.size_bytes,
        ):
            raise StorageError("backup.uploaded_file_mismatch", path=self.shown(path))
        return Evidence.CHECKSUM

    def size(self, path: Path) -> int:
        return int(self._file(path).size)

    def names(self, directory: Path) -> list[str]:
        self.commit()
        at = self.at(directory)
        start = f"{at}/" if at else ""
        entries = self._query(
            directory, lambda: [*self.api.list_bucket_tree(self.repo_id, at or None)]
        )
        # the Hub matches prefixes: a query for `run-1` also lists `run-10`
        inside = [
            entry.path.removeprefix(start) for entry in entries if entry.path.startswith(start)
        ]
        if at and not inside:
            raise FileNotFoundError(phrase("backup.path_missing", path=self.shown(directory)))
        return sorted({name.partition("/")[0] for name in inside})

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        at = self.at(path)
        hf_xet = require("hf_xet", f"the backup destination {self.url}")
        with self.plain_errors(self.shown(path)), tempfile.NamedTemporaryFile() as file:
            for buffer in buffers:
                file.write(buffer)
            file.flush()
            (computed,) = hf_xet.hash_files([file.name])
            self._make_ready()
            self._removed.discard(at)
            self.api.batch_bucket_files(self.repo_id, add=[(file.name, at)])
        self._written[at] = (Content.of(buffers, self.hashes), computed.hash)

    def create(self, path: Path, data: bytes) -> None:
        """Return None: a bucket does not support conditional writes."""

    def remove(self, path: Path) -> None:
        at = self.at(path)
        self._file(path)  # raises FileNotFoundError if it does not exist
        self._written.pop(at, None)
        self._removed.add(at)
        if len(self._removed) >= MOST_REMOVALS:
            self.commit()

    def commit(self) -> None:
        """Remove the files that `remove` has collected.

        Raises:
            OSError: if the Hub rejects the removal. Some of the files may be gone.
        """
        removed, self._removed = sorted(self._removed), set()
        if removed:
            with self.plain_errors(self.url):
                self.api.batch_bucket_files(self.repo_id, delete=removed)

    def _make_ready(self) -> None:
        if not self._is_ready:
            self.api.create_bucket(self.repo_id, private=True, exist_ok=True)
            self._is_ready = True

    def _is_private(self) -> bool:
        return self.api.bucket_info(self.repo_id).private

    def _address(self, at: str) -> str:
        return f"{self.api.endpoint}/buckets/{self.repo_id}/resolve/{quote(at, safe='')}"

    def _file(self, path: Path) -> "BucketFile":
        """Return the Hub's information about a file.

        Raises:
            FileNotFoundError: if the file does not exist or was removed.
        """
        at = self.at(path)
        entries: Iterable[BucketFile] = self._query(
            path, lambda: [*self.api.get_bucket_paths_info(self.repo_id, [at])]
        )
        for entry in entries:
            if entry.path == at and at not in self._removed:
                return entry
        raise FileNotFoundError(phrase("backup.path_missing", path=self.shown(path)))
