"""Messages as data: a code, what the message is about, and words from the catalogue.

Code raises or reports a `Message`; its words are in `catalogue/TOPIC.toml`, under its code. There
are three kinds of placeholder:

    {name}          a value of `about`, formatted as by Python: {name!r}, {name:,}
    {count:# row}   a number with its noun: "1 row", "2,000 rows"; {count:# index|indices}
    {=key} {=key:value}   a setting, spelled as the reader gave it: a flag on the command line, a
                          keyword in Python, else its key

Values of `about` are shown as they are: only what the catalogue marks as a setting is respelled.
"""

import os
import re
import string
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

CATALOGUE = Path(__file__).with_name("catalogue")
CODE = re.compile(r"[a-z_]+\.[a-z0-9_]+")
WORDS, CODES = "TEMPER_MESSAGES", "codes"  # an environment variable: codes instead of words

Speller = Callable[[str, str], str]


def as_key(key: str, value: str) -> str:
    """Spell a setting as files do: `training.batch_size=4`."""
    return f"{key}={value}" if value else key


_speller: ContextVar[Speller] = ContextVar("speller", default=as_key)


@contextmanager
def spelled_by(speller: Speller) -> Iterator[None]:
    """Show settings as `speller` spells them.

    Args:
        speller: gets a canonical key and a value, which may be empty.
    """
    token = _speller.set(speller)
    try:
        yield
    finally:
        _speller.reset(token)


class Setting(str):
    """The key of a setting as a value of a message: it is spelled as the reader gave it."""

    __slots__ = ()

    def __format__(self, value: str) -> str:
        return _speller.get()(str(self), value)


@dataclass(frozen=True)
class Message:
    """What happened, as data.

    Attributes:
        code: `topic.name`, the file and the entry of its words; or a text that is ready.
        about: what the words refer to, by name.
    """

    code: str
    about: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = words_of(self.code)
        if words is None:
            return self.code
        if os.environ.get(WORDS) == CODES:
            return _as_code(self)
        out = _Words().vformat(words, (), self.about)
        _msglog(self, out)
        return out


def phrase(code: str, /, **about: Any) -> str:
    """Return the words of a message."""
    return str(Message(code, about))


def _as_code(message: Message) -> str:
    about = ", ".join(f"{name}={value}" for name, value in message.about.items())
    return f"{message.code}({about})"


@cache
def words_of(code: str) -> str | None:
    """Return the words of a code; None if the catalogue has none."""
    if not CODE.fullmatch(code):
        return None
    topic, _, name = code.partition(".")
    return _entries(topic).get(name)


@cache
def _entries(topic: str) -> Mapping[str, str]:
    path = CATALOGUE / f"{topic}.toml"
    if not path.is_file():
        return {}
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        name: " ".join(entry[part] for part in ("text", "remedy") if part in entry)
        for name, entry in entries.items()
    }


class _Words(string.Formatter):
    """Formats the words of one message."""

    def get_field(
        self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, str]:
        if field_name.startswith("="):
            return Setting(field_name[1:]), field_name
        return kwargs[field_name], field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("# "):
            return counted(value, format_spec[2:])
        if isinstance(value, list | tuple | set | frozenset) and not format_spec:
            values = sorted(map(str, value)) if isinstance(value, set | frozenset) else value
            return ", ".join(map(str, values))
        return format(value, format_spec)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 row", "2,000 rows".

    Args:
        noun: the singular, or "singular|plural".
    """
    singular, _, plural = noun.partition("|")
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def _msglog(message, out):  # type: ignore  # noqa
    import json

    folder = os.environ.get("TEMPER_MSGLOG")
    if not folder:
        return
    record = {
        "test": os.environ.get("PYTEST_CURRENT_TEST", ""),
        "code": message.code,
        "about": {k: str(v)[:200] for k, v in message.about.items()},
        "text": out[:1500],
    }
    with open(f"{folder}/{os.getpid()}.jsonl", "a") as f:
        f.write(json.dumps(record) + "\n")
