"""A repository on the Hugging Face Hub, created as private.

huggingface_hub takes the token from the environment or from `hf auth login`. The Hub limits commits
per hour, so files are uploaded one by one, but committed together, as soon as one of them is read
or checked. For a file in large-file storage the Hub reports the SHA-256; a small file, which is
stored in git, is read back. Removed files stay in the repository's history and count against the
account's storage until the history is squashed.
"""

import contextlib
import errno
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from infrastructure.backup.backends.base import Content, Evidence, Place, require_content
from infrastructure.backup.backends.remote_errors import as_os_errors, status_of
from infrastructure.backup.format.file_operations import CHUNK_BYTES, Buffer
from infrastructure.core.errors import InputError, StorageError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.core.redact import redact_urls

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.hf_api import RepoFile

    Operation = CommitOperationAdd | CommitOperationDelete

Result = TypeVar("Result")

URL = re.compile(
    r"hf://(?:(datasets|models|buckets)/)?(?!buckets/)([\w.-]+/[\w.-]+)((?:/[\w.+-]+)*)/?"
)
KINDS = {"datasets": "dataset", "buckets": "bucket"}
SMALL_BYTES = 16 * 1024**2  # the Hub does not store files above 10 MB in git itself
MOST_PENDING = 100  # files in one commit
NUM_TRIES = 5  # when others commit to the same repository
ADVICE = {
    errno.EACCES: "backup.advice_hub_log_in",
    errno.ENOENT: "backup.advice_hub_check_name",
    errno.ENOTCONN: "backup.advice_hub_check_network",
    errno.ETIMEDOUT: "backup.advice_hub_check_network",
    errno.EDQUOT: "backup.advice_hub_storage_full",
    errno.EAGAIN: "backup.advice_hub_busy",
}

log = logging.getLogger(__name__)


class HubPlace(Place):
    """The folder of a repository at `hf://[datasets/|models/]OWNER/NAME[/folder]`.

    It is also the base class of all destinations on the Hub (`bucket.BucketPlace`).

    Args:
        endpoint: the address of the Hub; by default, that of huggingface_hub.

    Raises:
        ValueError: if the URL does not have this form.
    """

    is_slow = True
    hashes = ("sha256",)

    def __init__(self, url: str, endpoint: str | None = None) -> None:
        self.url = redact_urls(url).rstrip("/")
        match = URL.fullmatch(url)
        if match is None or {".", ".."} & {*url.split("/")}:
            raise InputError("backup.invalid_hub_url", url=self.url)
        self.repo_type = KINDS.get(match[1], "model")
        self.repo_id, self.folder = match[2], match[3].strip("/")
        self.endpoint = endpoint
        self._is_ready = False
        self._pending: dict[str, Operation] = {}

    @cached_property
    def api(self) -> "HfApi":
        """The client of the Hub. It looks up the token again for each request."""
        module = require("huggingface_hub", f"the backup destination {self.url}")
        self.show_progress(False)
        api: HfApi = module.HfApi(endpoint=self.endpoint)
        return api

    def show_progress(self, is_shown: bool) -> None:
        """Show or hide the client's progress bars for uploads."""
        # not an attribute of the package until it is imported, and a copier imports little
        utils = require("huggingface_hub.utils", f"the backup destination {self.url}")
        (utils.enable_progress_bars if is_shown else utils.disable_progress_bars)()

    def confirm(self, path: Path, content: Content) -> Evidence:
        self.commit()
        try:
            info = self._info(path)
        except FileNotFoundError as error:
            raise StorageError("backup.uploaded_file_missing", path=self.shown(path)) from error
        if info.lfs is None:
            require_content(self, path, content)
            return Evidence.READ_BACK
        if (info.lfs.sha256, info.lfs.size) != (content.sha256, content.size_bytes):
            raise StorageError("backup.uploaded_file_mismatch", path=self.shown(path))
        return Evidence.CHECKSUM

    def advice(self, error: OSError) -> str:
        code = ADVICE.get(error.errno or 0)
        return super().advice(error) if code is None else phrase(code)

    def caution(self, run_directory: Path) -> str | None:
        with contextlib.suppress(OSError):  # it does not exist yet, or the copier will report it
            with self.plain_errors(self.url):
                is_private = self._is_private()
            if not is_private:
                return phrase("backup.hub_repository_is_public", url=self.url)
        return None

    def identify(self, known: str | None = None) -> str:
        """Return the name of the repository, which identifies a destination on the Hub."""
        self.identity = f"{self.repo_type} {self.repo_id}"
        return self.identity

    def require_identity(self) -> None:
        """Do nothing: every request names the repository."""

    def probe(self) -> None:
        """Check for write access by creating the repository if it does not exist."""
        with self.plain_errors(self.url):
            self._make_ready()

    def sweep(self, directory: Path) -> None:
        """Do nothing: a commit is atomic."""

    def read(self, path: Path) -> Iterator[bytes]:
        self.commit()
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

        url = self._address(self.at(path))
        headers = {**build_hf_headers(), "Accept-Encoding": "identity", "Cache-Control": "no-cache"}
        with (
            self.plain_errors(self.shown(path)),
            http_stream_backoff("GET", url, headers=headers, max_retries=0) as response,
        ):
            hf_raise_for_status(response)
            yield from response.iter_bytes(CHUNK_BYTES)

    def size(self, path: Path) -> int:
        self.commit()
        return int(self._info(path).size)

    def names(self, directory: Path) -> list[str]:
        self.commit()
        at = self.at(directory)
        entries = self._query(directory, lambda: [*self._tree(at or None)])
        return sorted(entry.path.rpartition("/")[2] for entry in entries)

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        from huggingface_hub import CommitOperationAdd

        at = self.at(path)
        with self.plain_errors(self.shown(path)), tempfile.TemporaryFile() as file:
            for buffer in buffers:
                file.write(buffer)
            file.flush()
            is_small = file.tell() <= SMALL_BYTES  # small enough to wait for its commit in memory
            file.seek(0)
            operation = CommitOperationAdd(at, file.read() if is_small else file)
            self._make_ready()
            self.api.preupload_lfs_files(self.repo_id, [operation], repo_type=self.repo_type)
        self._add(at, operation)

    def create(self, path: Path, data: bytes) -> bool | None:
        """Commit a small file, unless a file of its name exists.

        The Hub rejects the commit if another commit was made since the check.
        """
        from huggingface_hub import CommitOperationAdd
        from huggingface_hub.errors import HfHubHTTPError

        self.commit()
        at, repo, kind = self.at(path), self.repo_id, self.repo_type
        added = [CommitOperationAdd(at, data)]
        with self.plain_errors(self.shown(path)):
            self._make_ready()
            for _ in range(NUM_TRIES):
                head = self.api.repo_info(repo, repo_type=kind).sha
                if head is None:
                    return None
                if self.api.get_paths_info(repo, [at], revision=head, repo_type=kind):
                    return False
                try:
                    self.api.create_commit(
                        *(repo, added),
                        commit_message=phrase("backup.hub_commit_claims_checkpoint"),
                        repo_type=kind,
                        parent_commit=head,
                    )
                    return True
                except HfHubHTTPError as error:
                    if status_of(error) != 412:
                        raise
            raise OSError(errno.EAGAIN, phrase("backup.hub_commits_collide"))

    def remove(self, path: Path) -> None:
        from huggingface_hub import CommitOperationDelete

        self.size(path)  # raises FileNotFoundError if it does not exist
        self._add(self.at(path), CommitOperationDelete(self.at(path), is_folder=False))

    def close(self) -> None:
        self.commit()

    def commit(self) -> None:
        """Commit the uploaded files and the removals.

        Raises:
            OSError: if the Hub rejects the commit. Nothing is committed then.
        """
        operations, self._pending = [*self._pending.values()], {}
        if operations:
            with self.plain_errors(self.url):
                self.api.create_commit(
                    self.repo_id,
                    operations,
                    commit_message=phrase(
                        "backup.hub_commit_backs_up_files", count=len(operations)
                    ),
                    repo_type=self.repo_type,
                )

    def at(self, path: Path) -> str:
        """Return the path of `path` in the repository.

        Raises:
            ValueError: if the path leads out of the destination.
        """
        return "/".join(part for part in (self.folder, *self.parts_of(path)) if part)

    def shown(self, path: Path) -> str:
        """Return the URL of `path`."""
        return "/".join([self.url, *path.parts])

    def _add(self, at: str, operation: "Operation") -> None:
        self._pending[at] = operation
        if len(self._pending) >= MOST_PENDING:
            self.commit()

    def _make_ready(self) -> None:
        if not self._is_ready:
            self.api.create_repo(
                self.repo_id, repo_type=self.repo_type, private=True, exist_ok=True
            )
            self._is_ready = True

    def _is_private(self) -> bool:
        return bool(self.api.repo_info(self.repo_id, repo_type=self.repo_type).private)

    def _address(self, at: str) -> str:
        """Return the URL from which the bytes of a file are downloaded."""
        from huggingface_hub import hf_hub_url

        endpoint = self.api.endpoint
        return hf_hub_url(self.repo_id, at, repo_type=self.repo_type, endpoint=endpoint)

    def _tree(self, at: str | None) -> Iterator[Any]:
        return iter(self.api.list_repo_tree(self.repo_id, at, repo_type=self.repo_type))

    def _info(self, path: Path) -> "RepoFile":
        from huggingface_hub.hf_api import RepoFile

        at = self.at(path)
        entries = self._query(
            path, lambda: self.api.get_paths_info(self.repo_id, [at], repo_type=self.repo_type)
        )
        for entry in entries:
            if isinstance(entry, RepoFile) and entry.path == at:
                return entry
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.shown(path))

    def _query(self, path: Path, question: Callable[[], Result]) -> Result:
        """Run `question`, a request to the Hub, and convert its errors."""
        with self.plain_errors(self.shown(path)):
            return question()

    @contextlib.contextmanager
    def plain_errors(self, shown: str) -> Iterator[None]:
        """Return a context that converts errors as `as_os_errors` does, with clear messages.

        The original messages are written to the log.
        """
        from huggingface_hub import get_token
        from huggingface_hub.errors import BucketNotFoundError, RepositoryNotFoundError

        status, is_missing = None, False
        try:
            with as_os_errors(shown):
                try:
                    yield
                except Exception as error:
                    status = status_of(error)
                    is_missing = isinstance(error, (RepositoryNotFoundError, BucketNotFoundError))
                    raise
        except OSError as error:
            number, has_token = error.errno, get_token() is not None
            if is_missing and not has_token:
                number = errno.EACCES  # without a token, a private repository appears to be missing
            elif is_missing and status == 404:
                number = errno.ENOENT
            words = self._in_words(number, status, is_missing=is_missing, has_token=has_token)
            log.debug("%s: %s", shown, error.strerror)
            raise OSError(number, words or error.strerror, shown) from None

    def _in_words(
        self, number: int | None, status: int | None, *, is_missing: bool, has_token: bool
    ) -> str | None:
        """Return a clear message for an error of the Hub's client; None to show the client's
        message.
        """
        if number in (errno.ENOTCONN, errno.ETIMEDOUT):
            endpoint = self.api.endpoint
            needed = "" if has_token else phrase("backup.hub_token_also_missing")
            if status is None:
                return phrase("backup.hub_not_responding", endpoint=endpoint, needed=needed)
            return phrase(
                "backup.hub_returned_server_error", endpoint=endpoint, status=status, needed=needed
            )
        if number == errno.EACCES and not has_token:
            return phrase("backup.hub_token_missing")
        if number == errno.EACCES and status == 403:
            return phrase("backup.hub_token_lacks_permission", repo_id=self.repo_id)
        if number == errno.EACCES:
            return phrase("backup.hub_token_rejected")
        if number == errno.ENOENT and is_missing:
            return phrase(
                "backup.hub_repository_not_found", repo_type=self.repo_type, repo_id=self.repo_id
            )
        return None
