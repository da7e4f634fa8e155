"""Hashes that decide whether prepared data can be reused."""

import hashlib
import importlib.metadata
import json
from typing import TYPE_CHECKING, Any

from infrastructure.core.checksums import text_hash

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def tokenizer_hash(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return a hash of everything that affects tokenization: content, chat template, library
    versions.
    """
    parts = {
        **tokenizer_content(tokenizer),
        "template": tokenizer.chat_template,
        "libraries": [
            importlib.metadata.version(package) for package in ("transformers", "tokenizers")
        ],
    }
    return text_hash(parts)


def tokenizer_content(tokenizer: "PreTrainedTokenizerBase") -> dict[str, Any]:
    """Return everything that defines a tokenizer, except for its chat template and its name."""
    parts: dict[str, Any] = {
        "class": type(tokenizer).__name__,
        "special": tokenizer.special_tokens_map,
        "added": {i: repr(token) for i, token in tokenizer.added_tokens_decoder.items()},
    }
    if tokenizer.is_fast:
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        for changed_by_use in ("padding", "truncation"):
            state.pop(changed_by_use, None)
        parts["state"] = state
    else:
        parts["vocabulary"] = tokenizer.get_vocab()
    return parts


def content_number(turns: list[list[str]]) -> int:
    """Return a 64-bit number that depends only on the texts: equal rows have equal numbers."""
    text = json.dumps(turns, ensure_ascii=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


class ExampleHash:
    """A running hash of a sequence of examples.

    Adding examples one by one or in groups gives the same hash.
    """

    def __init__(self) -> None:
        self._ids = hashlib.sha256()
        self._masks = hashlib.sha256()
        self._lengths = hashlib.sha256()

    def add(self, example: Any) -> None:
        """Add the next `TokenizedExample`."""
        self._ids.update(example.input_ids.astype("<i4").data)
        self._masks.update(example.supervised.data)
        self._lengths.update(len(example.input_ids).to_bytes(8, "little"))
        for picture in example.pictures:
            self._lengths.update(bytes.fromhex(picture.sha256))

    def hexdigest(self) -> str:
        parts = (self._ids, self._masks, self._lengths)
        return hashlib.sha256(b"".join(part.digest() for part in parts)).hexdigest()
