"""The publication of a trained model on the Hugging Face Hub.

Repositories are private by default, because a publication cannot be undone, and a model may have
memorized rows of its training data. All files are uploaded in one commit, and then each file is
compared with the Hub's copy.
"""

import errno
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infrastructure.backup.backends.base import Content
from infrastructure.backup.backends.hub import HubPlace
from infrastructure.core.checksums import SUMS, damaged_files, files_in
from infrastructure.core.errors import DamagedFileError, InputError, NoAnswerError, StorageError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact
from infrastructure.features.publish.model_card import (
    CARD,
    OF_ITS_AUTHOR,
    base_of_lora,
    card_of_repository,
)
from infrastructure.run.directory import RunDirectory

# Files of an earlier upload that a loader would mistake for parts of this model.
MODEL_FILES = re.compile(r"[^/]+\.safetensors(\.index\.json)?|(adapter_)?config\.json")
CHUNK_BYTES = 8 * 1024**2


class ModelRepository:
    """A model repository on the Hub.

    Args:
        name: `OWNER/NAME`.
        is_public: whether a new repository is public. The visibility of an existing repository does
            not change.

    Raises:
        ValueError: if `name` is not a repository name.
    """

    def __init__(self, name: str, is_public: bool = False) -> None:
        self.name = name.removeprefix("hf://").removeprefix("https://huggingface.co/").rstrip("/")
        if re.fullmatch(r"[\w.-]+/[\w.-]+", self.name) is None:
            raise InputError("publish.invalid_repository_name", name=redact(name))
        self.is_public = is_public
        self.place = HubPlace(f"hf://{self.name}")

    def make(self) -> None:
        """Create the repository if it does not exist; call this before work that takes long.

        Raises:
            StorageError: if the Hub does not respond or rejects the request; the message says what
                to do.
        """
        with self._understandable(), self.place.plain_errors(self.place.url):
            self.place.api.create_repo(self.name, private=not self.is_public, exist_ok=True)

    def upload(self, folder: Path, run: RunDirectory, step: int) -> JsonObject:
        """Upload the model in `folder`, which `run` trained for `step` steps.

        Returns:
            A dictionary with repository, url, private, files (their number), and notes for the
            user.

        Raises:
            ValueError: if run.json is missing or damaged, or the existing card cannot be read.
            StorageError: if the Hub does not respond, rejects the upload, or has other bytes than
                those sent.
        """
        if damaged := damaged_files(folder):
            raise DamagedFileError(
                "publish.published_folder_damaged", folder=folder, files=", ".join(damaged)
            )
        with self._understandable():
            there = self._names()
            was = b"".join(self.place.read(Path(CARD))).decode() if CARD in there else ""
            card = card_of_repository(was, self.name, folder, run, step)
            contents = self._commit(folder, card, there, f"Step {step} of {run.run_id}")
            for name, content in contents.items():
                self.place.confirm(Path(name), content)
            with self.place.plain_errors(self.place.url):
                is_private = bool(self.place.api.model_info(self.name).private)
        return {
            "repository": self.name,
            "url": f"{self.place.api.endpoint}/{self.name}",
            "private": is_private,
            "files": len(contents),
            "notes": [*self._notes(folder, is_private)],
        }

    def _names(self) -> list[str]:
        try:
            return self.place.names(Path())
        except FileNotFoundError:
            return []

    def _commit(
        self, folder: Path, card: str, there: list[str], message: str
    ) -> dict[str, Content]:
        """Upload all files in one commit. Return the uploaded contents by name."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        sums = "".join(
            line
            for line in (folder / SUMS).read_text().splitlines(keepends=True)
            if not line.rstrip("\n").endswith(f"  {CARD}")  # users edit the card on the Hub
        )
        own = {CARD: card.encode(), SUMS: sums.encode()}
        operations: list[CommitOperationAdd | CommitOperationDelete] = []
        contents = {}
        for path in files_in(folder):
            name = path.relative_to(folder).as_posix()
            if name not in own:
                operations.append(CommitOperationAdd(name, path))
                contents[name] = Content.of(_chunks(path), self.place.hashes)
        for name, data in own.items():
            operations.append(CommitOperationAdd(name, data))
            contents[name] = Content.of([data], self.place.hashes)
        operations += [
            CommitOperationDelete(name, is_folder=False)
            for name in there
            if MODEL_FILES.fullmatch(name) and name not in contents
        ]
        self.place.show_progress(sys.stderr.isatty())
        with self.place.plain_errors(self.place.url):
            self.place.api.create_commit(self.name, operations, commit_message=message)
        return contents

    def _notes(self, folder: Path, is_private: bool) -> Iterator[str]:
        yield (
            phrase("publish.published_private")
            if is_private
            else phrase("publish.published_public")
        )
        if is_private == self.is_public:
            yield phrase("publish.visibility_unchanged")
        if base_of_lora(self.name, folder) == OF_ITS_AUTHOR:
            yield phrase("publish.published_lora_local_base")
        yield phrase("publish.card_without_license")

    @contextmanager
    def _understandable(self) -> Iterator[None]:
        """Turn an error of the Hub inside the block into a StorageError that says what to do."""
        try:
            yield
        except OSError as error:
            is_silent = error.errno in (errno.ENOTCONN, errno.ETIMEDOUT)
            raise (NoAnswerError if is_silent else StorageError)(
                "publish.not_published",
                name=self.name,
                error=redact(error.strerror or str(error)),
                advice=self.place.advice(error),
            ) from error


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
