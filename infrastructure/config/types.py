"""The kinds of values that the configuration accepts, and how text is converted to them.

Sizes are decimal ("8GB" is 8 * 10^9 bytes) or binary with an i ("8GiB" is 8 * 2^30 bytes). A share
such as "90%" is kept as text here, and converted to bytes where the total is known.
"""

import codecs
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BeforeValidator, GetCoreSchemaHandler
from pydantic_core import core_schema

from infrastructure.core.comma_list import split_items
from infrastructure.core.errors import InputError
from infrastructure.core.files import is_utf8
from infrastructure.core.json_text import parse_json
from infrastructure.core.lookup import did_you_mean, unknown_name
from infrastructure.core.messages import phrase
from infrastructure.core.named_object import is_address
from infrastructure.core.price import parse_price
from infrastructure.core.redact import redact
from infrastructure.core.registry import Registry

_DECIMAL = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SECONDS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(s|min|m|h|d)?\s*")
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|[A-Za-z]*)\s*")


@dataclass(frozen=True)
class Allowed:
    """A mark with a description of the values that a field accepts, for errors, `--help` and forms.

    Attributes:
        placeholder: the placeholder for the value in `--help`; "" for the default of its type.
    """

    words: str
    placeholder: str = ""


@dataclass(frozen=True)
class UsedWhen:
    """A mark for a field, or a whole section, that has an effect only under a condition.

    Attributes:
        holds: returns whether the field has an effect, given the whole configuration.
        otherwise: the code of the message that says why the field has no effect.
        remedy: the code of the message that says what to do.
        about: the values for the placeholders of `otherwise`.
    """

    holds: Callable[[Any], object]
    otherwise: str
    remedy: str = "config.leave_out"
    about: Mapping[str, str] = field(default_factory=dict, hash=False)

    def reason(self) -> str:
        """Return why the field has no effect."""
        return phrase(self.otherwise, **self.about)


@dataclass(frozen=True)
class SameResult:
    """A mark for a field that does not change the result of a run.

    Such a field affects where, how fast, how safely or how visibly the result is computed. A run
    can resume with any value of the field and reaches the same weights.
    """


SAME_RESULT = SameResult()


class UnknownNameError(ValueError):
    """An error for a name that is not in a registry.

    Attributes:
        hint: the end of a sentence that suggests the most similar registered name, or "" if no name
            is similar.
    """

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.hint = hint


@dataclass(frozen=True)
class RegisteredName:
    """A mark for a field whose value is a registered name, or a list of such names.

    The value may also be the address of a user-defined part (`module:name`), or one of a few other
    words.

    Attributes:
        is_late: True if an unknown name is reported only when a run starts, because it may be
            registered after the configuration is created.
    """

    registry: Registry[Any]
    others: tuple[str, ...] = ()
    is_late: bool = False

    def names(self) -> tuple[str, ...]:
        """Return all accepted names: other words, built-in names, then added names."""
        built_in = self.registry.built_in
        added = [name for name in self.registry.names() if name not in built_in]
        return (*self.others, *built_in, *added)

    def check(self, value: object) -> object:
        """Check the names in a field's value, and return the value unchanged.

        Raises:
            UnknownNameError: if a name is unknown.
        """
        for name in () if self.is_late else names_in(value):
            self.require(name)
        return value

    def require(self, name: str) -> None:
        """Raise UnknownNameError for an unknown name. An address is checked later."""
        if name in self.others or is_address(name) or self.registry.has(name):
            return
        hint = did_you_mean(name, self.names())
        message = unknown_name(self.registry.what, redact(name), self.names())
        raise UnknownNameError(phrase("core.unknown_plugin", unknown=message), hint)

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))


def names_in(value: Any) -> tuple[str, ...]:
    """Return the names in a field's value, which is a name or a list of names."""
    return (value,) if isinstance(value, str) else tuple(value or ())


def parse_size(text: str) -> int:
    """Return the bytes of a size such as "8GB", "2 GiB" or "1000" (bytes).

    Raises:
        ValueError: if the text is not a size, or its unit is unknown.
    """
    match = _AMOUNT.fullmatch(text)
    unit = match[2].upper() if match else "?"
    factor = {"": 1, **_DECIMAL, **_BINARY}.get(unit)
    if match is None or factor is None:
        raise InputError("config.invalid_size", text=text)
    return round(float(match[1]) * factor)


def format_size(num_bytes: int) -> str:
    """Return a size in the largest decimal unit that divides `num_bytes`, such as "8GB"."""
    for unit, factor in reversed(_DECIMAL.items()):
        if num_bytes and num_bytes % factor == 0:
            return f"{num_bytes // factor}{unit}"
    return f"{num_bytes}B"


def amount_bytes(amount: str, total_bytes: int) -> int:
    """Return the number of bytes for a memory amount ("8GB" or "90%"), out of `total_bytes`."""
    if amount.endswith("%"):
        return int(total_bytes * float(amount[:-1]) / 100)
    return parse_size(amount)


def _normal_price(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError("config.invalid_price")
    return str(parse_price(str(value)))


def _normal_amount(value: object) -> object:
    """Return a memory amount in its normal spelling, so that equal amounts compare equal.

    An amount below a megabyte is refused, because its unit was probably forgotten ("90" for "90%").
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InputError("config.invalid_amount")
    match = _AMOUNT.fullmatch(str(value))
    if match and match[2] == "%":
        if not 0 < float(match[1]) <= 100:
            raise InputError("config.invalid_percentage")
        return f"{float(match[1]):g}%"
    num_bytes = parse_size(str(value))
    if num_bytes < _DECIMAL["MB"]:
        raise InputError("config.size_below_megabyte")
    return format_size(num_bytes)


def _duration_seconds(value: object) -> object:
    """Convert a duration such as "11h", "90min" or "30s" to seconds, the unit of plain numbers."""
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value)
    if match is None:
        raise InputError("config.invalid_duration")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def _with_unit(value: object) -> object:
    """Refuse a small number of seconds without a unit, which probably means hours or minutes.

    A float is accepted, because saved configurations store seconds as a float.
    """
    if isinstance(value, float):
        return value
    number = value.strip() if isinstance(value, str) else str(value)
    if not isinstance(value, bool) and re.fullmatch(r"\d+(\.0*)?", number) and float(number) < 60:
        raise InputError("config.duration_without_unit")
    return _duration_seconds(value)


def _megabytes(value: object) -> object:
    """Convert a size with a unit to megabytes; a plain number is in megabytes already."""
    if isinstance(value, str) and not value.strip().isdigit():
        return parse_size(value) / 10**6
    return value


def _without_percent_sign(value: object) -> object:
    return value.strip().removesuffix("%") if isinstance(value, str) else value


def split_commas(value: Any) -> Any:
    """Split a text such as `a,b` or a JSON list into its items; return other values unchanged.

    Raises:
        ValueError: if the text begins like JSON but is not valid JSON, or quotes are not closed.
    """
    if not isinstance(value, str):
        return value
    if value.strip().startswith("["):
        return _from_json(value)
    return split_items(value)


def _from_json(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except ValueError as error:
        raise InputError("config.invalid_json", reason=error) from error


def _path_text(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _each_once(values: list[str]) -> list[str]:
    if len(set(values)) < len(values):
        raise InputError("config.duplicate_name")
    return values


def _only_utf8(value: str) -> str:
    """Refuse a path that is not valid UTF-8, because tokenizers and the Hub fail on it."""
    if not is_utf8(value):
        raise InputError("config.value_not_utf8")
    return value


def _expand_home(value: str) -> str:
    if not value:
        raise InputError("config.empty_path")
    return str(Path(value).expanduser()) if value.startswith("~") else value


def _text_encoding(value: str) -> str:
    """Return an encoding's canonical name, so that different names of it compare equal."""
    try:
        name = codecs.lookup(value).name
    except (LookupError, ValueError):
        name = ""
    if value == "auto" or name.startswith("utf-8"):
        return "auto" if value == "auto" else "utf-8"
    if not name or name in _NO_FILE_ENCODINGS or not _is_of_text(value):
        raise InputError("config.unknown_value")
    return name


def _colour(value: str) -> str:
    colour = value.lower()
    if colour not in ("white", "black", "gray") and not re.fullmatch("#[0-9a-f]{6}", colour):
        raise InputError("config.unknown_value")
    return colour


def _is_of_text(encoding: str) -> bool:
    """Return whether a codec encodes text. Python also has codecs for bytes, such as base64."""
    try:
        b"a".decode(encoding, "replace")
    except LookupError:
        return False
    return True


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


_NO_FILE_ENCODINGS = (
    "idna",
    "punycode",
    "raw-unicode-escape",
    "unicode-escape",
    "utf-7",
    "undefined",
)
Auto = Literal["auto"]
# No count is larger; a number with too many digits is reported here and not by a library.
LARGEST = 2**31 - 1
Count = Annotated[int, Ge(1), Le(LARGEST)]
CountOrZero = Annotated[int, Ge(0), Le(LARGEST)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
ShareAboveZero = Annotated[float, Gt(0), Le(1)]
ShareBelowOne = Annotated[float, Ge(0), Lt(1)]
Duration = Annotated[
    float,
    BeforeValidator(_duration_seconds),
    Allowed('a duration such as "11h", "90min" or "30s", or a number of seconds', "TIME"),
    Gt(0),
]
TimeLimit = Annotated[
    float,
    BeforeValidator(_with_unit),
    Allowed('a duration with its unit, such as "11h", "90min" or "30s"', "TIME"),
    Gt(0),
]
Percent = Annotated[
    float,
    BeforeValidator(_without_percent_sign),
    Allowed('a percentage from 0 to 100, such as 85 or "85%"', "PERCENT"),
    Ge(0),
    Le(100),
]
PriceText = Annotated[
    str,
    BeforeValidator(_normal_price),
    Allowed('a number above 0, with a currency if you like: 2.5, $2.50, "2.5 EUR"', "PRICE"),
]
MemoryAmount = Annotated[
    str,
    BeforeValidator(_normal_amount),
    Allowed('a size of at least 1MB such as "8GB", or a share of the total such as "90%"', "SIZE"),
]
Megabytes = Annotated[
    int,
    BeforeValidator(_megabytes),
    Allowed('a whole number of megabytes, or a size such as "10GB"', "SIZE"),
    Ge(0),
    Le(LARGEST),
]
TextEncoding = Annotated[
    str,
    AfterValidator(_text_encoding),
    Allowed("auto or an encoding, such as utf-8, cp1252, latin-1, utf-16, shift_jis, gb18030"),
]
Colour = Annotated[
    str,
    AfterValidator(_colour),
    Allowed('"white", "black", "gray", or an RGB color such as "#8090ff"'),
]
Names = Annotated[
    list[str], BeforeValidator(split_commas), Allowed('a list of names, such as "a,b"')
]
PathLike = BeforeValidator(_path_text)
_AnyPath = Annotated[str, PathLike, AfterValidator(_expand_home)]
DataPath = Annotated[_AnyPath, Allowed("a path")]
PathText = Annotated[_AnyPath, AfterValidator(_only_utf8), Allowed("a path of UTF-8 text")]
LogLevel = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_upper)
]
SplitCommas = BeforeValidator(split_commas)
EachOnce = AfterValidator(_each_once)
FromJson = BeforeValidator(_from_json)
