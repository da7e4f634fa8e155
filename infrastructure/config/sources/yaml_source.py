"""Reading of a configuration file: YAML 1.2 scalars, each key once, line numbers recorded.

PyYAML follows YAML 1.1, where `2e-4` is text, `no` is false, `010` is 8 and `1:30` is 90. This
reader treats as numbers only what people read as numbers. Everything else that is not true, false
or null is text. Anchors and merge keys (`<<: *anchor`) work. Tags that build Python objects are
refused. A file whose aliases would expand to an absurd number of values is refused before they are
expanded.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infrastructure.config.base import ConfigurationError
from infrastructure.core.messages import phrase

MAX_BYTES = 256 << 10
MAX_VALUES = 5000
MAX_DEPTH = 50

_MERGE = "tag:yaml.org,2002:merge"
_RESOLVERS = {
    "merge": (r"<<", "<"),
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
    """A safe YAML loader with the scalar types of YAML 1.2."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 (PyYAML's own class attribute)


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
        _refuse_many(node, path)
        return _Reader(loader, path).mapping(node, lines), lines
    except yaml.YAMLError as error:
        raise ConfigurationError(_sentence(path, error)) from None
    except RecursionError:
        raise ConfigurationError(_too_deep(str(path))) from None


def _refuse_many(root: yaml.Node, path: Path) -> None:
    """Check the size to which a file expands with all aliases and merges, without expanding it.

    Raises:
        ConfigurationError: if there are too many values, they are nested too deeply, or an anchor
            contains itself.
    """
    counted: dict[yaml.Node, tuple[int, int]] = {}  # values, and levels

    def count(node: yaml.Node, outer: tuple[yaml.Node, ...]) -> tuple[int, int]:
        if node in outer:
            raise ConfigurationError("config.yaml_recursive_anchor", path=path, line=_line(node))
        if len(outer) > MAX_DEPTH:
            raise ConfigurationError(_too_deep(f"{path}:{_line(node)}"))
        if node not in counted:
            counts = [count(inner, (*outer, node)) for inner in _inside(node)]
            num_values = 1 + sum(values for values, _ in counts)
            counted[node] = num_values, 1 + max((levels for _, levels in counts), default=0)
            if num_values > MAX_VALUES:
                raise ConfigurationError(
                    "config.yaml_too_many_values",
                    path=path,
                    line=_line(node),
                    max_values=MAX_VALUES,
                )
        if len(outer) + counted[node][1] > MAX_DEPTH:
            raise ConfigurationError(_too_deep(f"{path}:{_line(node)}"))
        return counted[node]

    count(root, ())


def _inside(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [inner for pair in node.value for inner in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _too_deep(where: str) -> str:
    return phrase("config.yaml_too_deep", location=where, max_depth=MAX_DEPTH)


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


@dataclass(frozen=True)
class _Reader:
    """A builder of Python values from the YAML nodes of one file."""

    loader: _Loader
    path: Path

    def mapping(
        self,
        node: yaml.MappingNode,
        lines: dict[str, int],
        prefix: str = "",
    ) -> dict[object, object]:
        """Return the values of a mapping node, and add the line of each dotted path to `lines`."""
        values: dict[object, object] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self._key(key_node, values, lines, prefix)
            if isinstance(value_node, yaml.MappingNode):
                values[key] = self.mapping(value_node, lines, f"{prefix}{key}.")
            else:
                values[key] = self.loader.construct_object(value_node, deep=True)
        for merged in self._merged(node):
            self._add_new(merged, values, lines, prefix)
        return values

    def _key(
        self, node: yaml.Node, values: Mapping[object, object], lines: dict[str, int], prefix: str
    ) -> object:
        key = self.loader.construct_object(node, deep=True)
        where = f"{prefix}{key}"
        if not isinstance(key, str | int | float):
            raise ConfigurationError(
                "config.yaml_invalid_key", path=self.path, line=_line(node), key=key
            )
        if key in values:
            raise ConfigurationError(
                "config.yaml_duplicate_key",
                path=self.path,
                line=_line(node),
                key=where,
                other_line=lines[where],
            )
        lines[where] = _line(node)
        return key

    def _merged(self, node: yaml.MappingNode) -> Iterator[yaml.MappingNode]:
        """Yield the mappings that a merge key `<<` refers to: one, or a list of them."""
        for key_node, value_node in node.value:
            if key_node.tag != _MERGE:
                continue
            is_list = isinstance(value_node, yaml.SequenceNode)
            for merged in value_node.value if is_list else [value_node]:
                if not isinstance(merged, yaml.MappingNode):
                    raise ConfigurationError(
                        "config.yaml_invalid_merge", path=self.path, line=_line(key_node)
                    )
                yield merged

    def _add_new(
        self,
        merged: yaml.MappingNode,
        values: dict[Any, Any],
        lines: dict[str, int],
        prefix: str,
    ) -> None:
        """Add the values of a merged mapping that are not set yet, with their line numbers."""
        there: dict[str, int] = {}
        for key, value in self.mapping(merged, there, prefix).items():
            if key not in values:
                values[key] = value
                where = f"{prefix}{key}"
                new = {w: n for w, n in there.items() if w == where or w.startswith(f"{where}.")}
                lines.update(new)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _sentence(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    place = f"{path}:{mark.line + 1}" if mark else str(path)
    return phrase("config.yaml_invalid", place=place, reason=problem)
