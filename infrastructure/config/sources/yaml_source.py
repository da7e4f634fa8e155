"""Reading of a configuration file: YAML 1.2 scalars, each key once, line numbers recorded.

PyYAML follows YAML 1.1, where `2e-4` is text, `no` is false, `010` is 8 and `1:30` is 90. This
reader treats as numbers only what people read as numbers. Everything else that is not true, false
or null is text. Tags that build Python objects are refused, and so are aliases (`*name`), with
which a small file can expand to an absurd number of values.
"""

import re
from pathlib import Path
from typing import Any, cast

import yaml

from infrastructure.config.base import ConfigurationError
from infrastructure.core.messages import phrase

MAX_BYTES = 256 << 10
MAX_DEPTH = 50

_RESOLVERS = {
    "null": (r"~|null|Null|NULL|", "~nN\0"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
}


class _Loader(yaml.SafeLoader):
    """A safe YAML loader with the scalar types of YAML 1.2, and without aliases."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 (PyYAML's own class attribute)
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark = cast(Any, self).peek_event().start_mark  # PyYAML's stubs give it no type
        if self.check_event(yaml.AliasEvent):
            text = phrase("config.yaml_alias")
            raise yaml.composer.ComposerError(None, None, text, mark)
        if self.depth >= MAX_DEPTH:
            text = phrase("config.yaml_too_deep", max_depth=MAX_DEPTH)
            raise yaml.composer.ComposerError(None, None, text, mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    try:
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    except ValueError:  # thousands of digits
        mark = node.start_mark
        text = phrase("config.number_too_long")
        raise yaml.constructor.ConstructorError(None, None, text, mark) from None


for _kind, (_pattern, _first) in _RESOLVERS.items():
    _firsts = [*_first.replace("\0", "")] + ([""] if "\0" in _first else [])
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_pattern})$"), _firsts
    )
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


def read_yaml(path: Path) -> tuple[dict[object, object], dict[str, int]]:
    """Return the file's nested values, and dotted path → line number, counted from 1.

    Raises:
        ConfigurationError: if the file is missing, is not YAML or not a mapping, or repeats a key;
            the message has file and line.
    """
    lines: dict[str, int] = {}
    text = _text(path)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None or node.tag == "tag:yaml.org,2002:null":
            return {}, lines
        if not isinstance(node, yaml.MappingNode):
            raise ConfigurationError("config.yaml_not_a_mapping", path=path, line=_line(node))
        return _mapping(loader, path, node, lines), lines
    except yaml.YAMLError as error:
        raise ConfigurationError(_sentence(path, error)) from None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigurationError(
                "config.yaml_file_too_large", path=path, max_kib=MAX_BYTES >> 10
            )
        return data.decode("utf-8")
    except FileNotFoundError:
        raise ConfigurationError("config.file_not_found", path=path) from None
    except UnicodeDecodeError as error:
        raise ConfigurationError("config.file_not_utf8", path=path, offset=error.start) from None
    except OSError as error:
        raise ConfigurationError(
            "config.file_unreadable", path=path, reason=error.strerror
        ) from None


def _mapping(
    loader: _Loader, path: Path, node: yaml.MappingNode, lines: dict[str, int], prefix: str = ""
) -> dict[object, object]:
    """Return the values of a mapping node, and add the line of each dotted path to `lines`."""
    values: dict[object, object] = {}
    for key_node, value_node in node.value:
        key, line = loader.construct_object(key_node, deep=True), _line(key_node)
        where = f"{prefix}{key}"
        if not isinstance(key, str | int | float):
            raise ConfigurationError("config.yaml_invalid_key", path=path, line=line, key=key)
        if key in values:
            raise ConfigurationError(
                "config.yaml_duplicate_key",
                path=path,
                line=line,
                key=where,
                other_line=lines[where],
            )
        lines[where] = line
        if isinstance(value_node, yaml.MappingNode):
            values[key] = _mapping(loader, path, value_node, lines, f"{where}.")
        else:
            values[key] = loader.construct_object(value_node, deep=True)
    return values


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _sentence(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    place = f"{path}:{mark.line + 1}" if mark else str(path)
    return phrase("config.yaml_invalid", place=place, reason=problem)
