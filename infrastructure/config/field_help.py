"""Descriptions of the values that a field accepts and of given values, for errors and `--help`."""

import json
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from infrastructure.config.types import LARGEST, Allowed, RegisteredName
from infrastructure.core.comma_list import join_items
from infrastructure.core.redact import redact

_MAX_SHOWN = 80


def allowed_values(info: FieldInfo) -> str:
    """Describe the values that a field accepts: `a whole number of at least 1, or "auto"`."""
    return _describe_values(info.annotation, info.metadata)


def format_value(value: object) -> str:
    """Return a value as it may appear in a message: short, one line, secrets masked."""
    text = redact(plain(value) if isinstance(value, str) is False else json.dumps(value))
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def as_typed(value: object) -> str:
    """Return a value as a user types it: short, secrets masked."""
    text = redact(plain(value))
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def plain(value: object) -> str:
    """Return a value as a user types it: `none`, `true`, `32`, `a,b`."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, list) and all(isinstance(item, str | int) for item in value):
        return join_items(value) or "[]"
    return json.dumps(value) if isinstance(value, dict) else str(value)


def choices(info: FieldInfo) -> list[str]:
    """Return the words that a field accepts, as typed; [] if it accepts other values, too."""
    words = [_literal_words(leaf) for leaf in leaves(info.annotation)]
    return [word for some in words for word in some] if all(words) else []


def words_taken(info: FieldInfo) -> list[str]:
    """Return the words, such as `auto` and `none`, that a field accepts besides other values."""
    named = metadata_of(info, RegisteredName)
    if named and get_origin(info.annotation) is not list:
        return list(named.names())
    return [word for leaf in leaves(info.annotation) for word in _literal_words(leaf)]


def metadata_of(info: FieldInfo, kind: type) -> Any:
    """Return the first item of class `kind` in a field's metadata, or None."""
    return next((item for item in info.metadata if isinstance(item, kind)), None)


def placeholder(annotation: Any, metadata: Iterable[object] = ()) -> str:
    """Return the placeholder for a field's value in `--help`, such as TIME; "" if there is none."""
    of_parts = (placeholder(part) for part in get_args(annotation) if get_args(part))
    stated = (item.placeholder for item in metadata if isinstance(item, Allowed))
    own = getattr(annotation, "__metadata__", ())
    of_own = (item.placeholder for item in own if isinstance(item, Allowed))
    return next(filter(None, (*stated, *of_own, *of_parts)), "")


def leaves(annotation: object) -> Iterator[Any]:
    """Yield the members of a union, at any depth; the items of a list type are not members."""
    if get_origin(annotation) is Annotated:
        yield from leaves(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from leaves(part)
    else:
        yield annotation


def _literal_words(leaf: object) -> list[str]:
    if get_origin(leaf) is Literal:
        return [str(word) for word in get_args(leaf)]
    return {bool: ["true", "false"], type(None): ["none"]}.get(leaf, [])


def _describe_values(annotation: Any, metadata: Any = ()) -> str:
    stated_words = next((item.words for item in metadata if isinstance(item, Allowed)), None)
    for item in metadata:
        if isinstance(item, RegisteredName) and stated_words is None:
            return joined_by_or(
                [*item.names(), "a name that you registered", "your own code as module:function"]
            )
    if stated_words and get_origin(annotation) not in (Union, types.UnionType):
        return stated_words
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _describe_values(inner, more)
    if get_origin(annotation) in (Union, types.UnionType):
        plain_parts = [part for part in get_args(annotation) if part is not type(None)]
        parts = [words for part in plain_parts for words in _alternatives(part)]
        parts = [stated_words] if stated_words else parts
        return joined_by_or([*parts, "none"] if type(None) in get_args(annotation) else parts)
    if get_origin(annotation) is Literal:
        return joined_by_or(_alternatives(annotation))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a section"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return names.get(annotation, "a value") + _bounds(metadata)


def _alternatives(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [json.dumps(choice) for choice in get_args(annotation)]
    return ["true", "false"] if annotation is bool else [_describe_values(annotation)]


def joined_by_or(parts: list[str]) -> str:
    """Join alternatives by "or", with commas if one of them is more than a word."""
    if " " in parts[0]:
        return ", or ".join(parts)
    *before, last = parts
    return f"{', '.join(before)} or {last}" if before else last


def _bounds(metadata: Any) -> str:
    match [item for item in metadata if isinstance(item, Ge | Gt | Le | Lt)]:
        case [Ge(ge=low), Le(le=high)] if high != LARGEST:
            return f" from {low} to {high}"
    parts = []
    for item in metadata:
        match item:
            case Ge(ge=bound):
                parts.append(f"of at least {bound}")
            case Gt(gt=bound):
                parts.append(f"above {bound}")
            case Le(le=bound) if bound != LARGEST:  # too large to be worth mentioning
                parts.append(f"at most {bound}")
            case Lt(lt=bound):
                parts.append(f"below {bound}")
    return " " + " and ".join(parts) if parts else ""
