"""Messages to the user: a code, values, and a text template from the catalogue.

The code raises or reports a `Message`. Its text template is in `catalogue/TOPIC.toml` under the
code of the message. There are three kinds of placeholders:

    {name}          a value of `about`, formatted as by Python: {name!r}, {name:,}
    {count:# row}   a number with its noun: "1 row", "2,000 rows"; {count:# index|indices}
    {=key} {=key:value}   a setting, spelled as the reader gives it: a flag on the command line, a
                          keyword in Python, else its key

A value of the type `Setting` is also spelled as the reader gives it. All other values are shown
unchanged.
"""

import os
import re
import string
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

CATALOGUE = Path(__file__).with_name("catalogue")
FEATURES = Path(__file__).parents[1] / "features"
CODE = re.compile(r"[a-z0-9_]+\.[a-z0-9_]+")
WORDS, CODES = "TEMPER_MESSAGES", "codes"  # environment variable: show codes instead of words

INTERRUPT = "interrupt"  # the way to interrupt, in place of a setting's key
# The flags of arguments of commands and functions. They are not settings.
ARGUMENTS = {
    "accept": "--accept",
    "bits": "--bits",
    "file_format": "--format",
    "max_tokens": "--max-tokens",
    "part": "--as",
    "preset": "--preset",
}

Speller = Callable[[str, str], str]


def as_key(key: str, value: str = "") -> str:
    """Spell a setting as in a configuration file: `training.batch_size=4`."""
    if key == INTERRUPT:
        return "Ctrl-C"
    return f"{key}={value}" if value else key


_spellers: list[Speller] = [as_key]  # of this process: threads show settings as it does


def speller() -> Speller:
    """Return the function that spells settings in messages at the moment."""
    return _spellers[-1]


@contextmanager
def spelled_by(spell: Speller) -> Iterator[None]:
    """Spell the settings in messages with the function `spell` inside the block.

    Args:
        spell: a function that gets a canonical key and a value, which may be empty.
    """
    _spellers.append(spell)
    try:
        yield
    finally:
        # The newest of its kind: the same speller may be in use further out.
        del _spellers[len(_spellers) - 1 - _spellers[::-1].index(spell)]


class Setting(str):
    """The key of a setting, with an optional value. In a message, it is spelled by the current
    speller.
    """

    value: str

    def __new__(cls, key: str, value: str = "") -> Self:
        setting = super().__new__(cls, key)
        setting.value = value
        return setting

    def __format__(self, spec: str) -> str:
        return format(speller()(str(self), self.value), spec)


_NAMED_SETTING = re.compile(r"\{=([^}:]+):?([^}]*)\}")


def spelled(text: str) -> str:
    """Return a text with each `{=key:value}` replaced by the setting, spelled for the reader."""
    return _NAMED_SETTING.sub(lambda named: speller()(named[1], named[2]), text)


@dataclass(frozen=True)
class Message:
    """A message to the user, as a code and values.

    Attributes:
        code: `topic.name`, which names the file and the entry of the text template; or the text
            itself.
        about: the values for the placeholders, by name.
    """

    code: str
    about: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = words_of(self.code)
        if words is None:
            return self.code
        as_codes = os.environ.get(WORDS) == CODES
        text = _Words(is_strict=as_codes).vformat(words, (), self.about)
        text = text.replace("?. ", "? ")  # a hint that asks, before the remedy
        return _as_code(self) if as_codes else text


def phrase(code: str, /, **about: Any) -> str:
    """Return the text of the message `code` with these values."""
    return str(Message(code, about))


def _as_code(message: Message) -> str:
    about = ", ".join(f"{name}={_plain(value)}" for name, value in message.about.items())
    return f"{message.code}({about})"


def _plain(value: object) -> str:
    return as_key(str.__str__(value), value.value) if isinstance(value, Setting) else str(value)


@cache
def words_of(code: str) -> str | None:
    """Return the text template of a message; None if the catalogue has no such code."""
    if not CODE.fullmatch(code):
        return None
    topic, _, name = code.partition(".")
    return _entries(topic).get(name)


@cache
def _entries(topic: str) -> Mapping[str, str]:
    path = catalogue_files().get(topic)
    if path is None:
        return {}
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        name: ". ".join(entry[part] for part in ("text", "remedy") if part in entry)
        for name, entry in entries.items()
    }


def catalogue_files() -> Mapping[str, Path]:
    """Return the files of the message catalogue: topic → path. Each feature has its own file."""
    of_features = {path.parent.name: path for path in FEATURES.glob("*/messages.toml")}
    return {path.stem: path for path in CATALOGUE.glob("*.toml")} | of_features


class _Named(str):
    """A placeholder for a setting whose key is part of the text template."""


class _Words(string.Formatter):
    """A formatter that fills the placeholders of a message's text template.

    Args:
        is_strict: raise an error if a value does not fit its format, instead of showing it
            unchanged.
    """

    def __init__(self, *, is_strict: bool) -> None:
        self.is_strict = is_strict

    def get_field(
        self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, str]:
        if field_name.startswith("="):
            return _Named(field_name[1:]), field_name
        return kwargs[field_name], field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        try:
            return self._formatted(value, format_spec)
        except (TypeError, ValueError):  # a message is shown even if a value is of another type
            if self.is_strict:
                raise
            return str(value)

    def _formatted(self, value: Any, format_spec: str) -> str:
        if isinstance(value, _Named):
            return str(speller()(value, format_spec))
        if format_spec.startswith("# "):
            return counted(value, format_spec[2:])
        if isinstance(value, list | tuple | set | frozenset) and not format_spec:
            values = sorted(map(str, value)) if isinstance(value, set | frozenset) else value
            return ", ".join(map(format, values))
        return format(value, format_spec)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 row", "2,000 rows".

    Args:
        noun: the singular, or "singular|plural".
    """
    singular, _, plural = noun.partition("|")
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
