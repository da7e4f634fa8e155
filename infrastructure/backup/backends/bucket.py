"""A bucket on the Hugging Face Hub; it is made private.

A bucket keeps files and no history: what is removed takes no space any more, and there are no
commits, whose number the Hub limits. Its files go by Xet, which names a file by a hash of its own;
the Hub lists that name, and it is compared with the one that is computed here from the bytes that
were written. What another process has written is read back.
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
from infrastructure.core.optional import require

if TYPE_CHECKING:
    from huggingface_hub import BucketFile

START = "hf://buckets/"
MOST_REMOVALS = 100  # files in one request


class BucketPlace(HubPlace):
    """The folder of a bucket that `hf://buckets/OWNER/NAME[/folder]` names.

    Args:
        endpoint: address of the Hub; None: as huggingface_hub has it.

    Raises:
        ValueError: the URL is no such name.
    """

    def __init__(self, url: str, endpoint: str | None = None) -> None:
        super().__init__(url, endpoint)
        self._written: dict[str, tuple[Content, str]] = {}  # and their names in Xet
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
        # the Hub compares letters: it lists `run-10`, too, where `run-1` is asked for
        inside = [
            entry.path.removeprefix(start) for entry in entries if entry.path.startswith(start)
        ]
        if at and not inside:
            raise FileNotFoundError(f"{self.shown(directory)} is not there")
        return sorted({name.partition("/")[0] for name in inside})

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        at = self.at(path)
        hf_xet = require("hf_xet", f"the place {self.url}")
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
        self._file(path)  # what is not there cannot be removed
        self._written.pop(at, None)
        self._removed.add(at)
        if len(self._removed) >= MOST_REMOVALS:
            self.commit()

    def commit(self) -> None:
        """Take away what was removed.

        Raises:
            OSError: the Hub refuses; some of it may be gone.
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
        """What the Hub knows of a file.

        Raises:
            FileNotFoundError: it is not there, or was removed.
        """
        at = self.at(path)
        entries: Iterable[BucketFile] = self._query(
            path, lambda: [*self.api.get_bucket_paths_info(self.repo_id, [at])]
        )
        for entry in entries:
            if entry.path == at and at not in self._removed:
                return entry
        raise FileNotFoundError(f"{self.shown(path)} is not there")
