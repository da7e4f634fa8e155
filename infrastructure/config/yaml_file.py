"""Read a configuration file: YAML with the scalars of YAML 1.2, each key once, lines remembered.

PyYAML follows YAML 1.1, where `2e-4` is a text, `no` is false, `010` is 8 and `1:30` is 90. Here a
number is what everybody reads as a number, and everything else that is not true, false or null is a
text. Anchors and merge keys (`<<: *anchor`) work; tags that build Python objects are refused.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infrastructure.config.section import ConfigurationError

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
    """A safe loader with YAML 1.2's scalars."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 (PyYAML's own class attribute)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


for _kind, (_pattern, _first) in _RESOLVERS.items():
    _firsts = [*_first.replace("\0", "")] + ([""] if "\0" in _first else [])
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_pattern})$"), _firsts
    )
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


def read_yaml(path: Path) -> tuple[dict[Any, Any], dict[str, int]]:
    """The file's nested values, and the line (from 1) of each dotted path in them.

    Raises:
        ConfigurationError: no such file, not YAML, no mapping, a key twice; with file and line.
    """
    lines: dict[str, int] = {}
    text = _text(path)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None or node.tag == "tag:yaml.org,2002:null":
            return {}, lines
        if not isinstance(node, yaml.MappingNode):
            raise ConfigurationError(f"{path}:{_line(node)}: `key: value` lines are needed here")
        return _Reader(loader, path).mapping(node, lines), lines
    except yaml.YAMLError as error:
        raise ConfigurationError(_sentence(path, error)) from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(f"there is no configuration file {path}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None


@dataclass(frozen=True)
class _Reader:
    """Makes values of the nodes of one file."""

    loader: _Loader
    path: Path

    def mapping(
        self,
        node: yaml.MappingNode,
        lines: dict[str, int],
        prefix: str = "",
        outer: tuple[yaml.Node, ...] = (),
    ) -> dict[Any, Any]:
        """The values of a mapping; the line of each dotted path is added to `lines`."""
        if node in outer:
            raise ConfigurationError(f"{self.path}:{_line(node)}: an anchor that contains itself")
        inside = (*outer, node)
        values: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self._key(key_node, values, lines, prefix)
            if isinstance(value_node, yaml.MappingNode):
                values[key] = self.mapping(value_node, lines, f"{prefix}{key}.", inside)
            else:
                values[key] = self.loader.construct_object(value_node, deep=True)
        for merged in self._merged(node):
            self._add_new(merged, values, lines, prefix, inside)
        return values

    def _key(
        self, node: yaml.Node, values: dict[Any, Any], lines: dict[str, int], prefix: str
    ) -> Any:
        key = self.loader.construct_object(node, deep=True)
        where = f"{prefix}{key}"
        if not isinstance(key, str | int | float):
            raise ConfigurationError(f"{self.path}:{_line(node)}: {key!r} cannot be a key")
        if key in values:
            raise ConfigurationError(
                f"{self.path}:{_line(node)}: {where} stands here and in line {lines[where]}: "
                "remove one of them"
            )
        lines[where] = _line(node)
        return key

    def _merged(self, node: yaml.MappingNode) -> Iterator[yaml.MappingNode]:
        """The mappings that `<<` names, one or a list of them."""
        for key_node, value_node in node.value:
            if key_node.tag != _MERGE:
                continue
            is_list = isinstance(value_node, yaml.SequenceNode)
            for merged in value_node.value if is_list else [value_node]:
                if not isinstance(merged, yaml.MappingNode):
                    raise ConfigurationError(
                        f"{self.path}:{_line(key_node)}: << takes an anchor of `key: value` lines "
                        "(<<: *name) or a list of such anchors"
                    )
                yield merged

    def _add_new(
        self,
        merged: yaml.MappingNode,
        values: dict[Any, Any],
        lines: dict[str, int],
        prefix: str,
        outer: tuple[yaml.Node, ...],
    ) -> None:
        """What a merged mapping has and nobody said before, with the lines where it stands."""
        there: dict[str, int] = {}
        for key, value in self.mapping(merged, there, prefix, outer).items():
            if key not in values:
                values[key] = value
                where = f"{prefix}{key}"
                new = {w: n for w, n in there.items() if w == where or w.startswith(f"{where}.")}
                lines.update(new)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _sentence(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f":{mark.line + 1}" if mark else ""
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{path}{line}: not valid YAML: {problem}"
