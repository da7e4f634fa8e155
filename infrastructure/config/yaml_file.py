"""Read a configuration file: YAML with the scalars of YAML 1.2, each key once, lines remembered.

PyYAML follows YAML 1.1, where `2e-4` is a text, `no` is false, `010` is 8 and `1:30` is 90. Here a
number is what everybody reads as a number, and everything else that is not true, false or null is a
text. Anchors work; tags that build Python objects are refused.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from infrastructure.config.section import ConfigurationError

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
        return _mapping(node, loader, path, "", lines, ()), lines
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


def _mapping(
    node: yaml.MappingNode,
    loader: _Loader,
    path: Path,
    prefix: str,
    lines: dict[str, int],
    outer: tuple[yaml.Node, ...],
) -> dict[Any, Any]:
    if node in outer:
        raise ConfigurationError(f"{path}:{_line(node)}: an anchor that contains itself")
    values: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        where = f"{prefix}{key}"
        if not isinstance(key, str | int | float):
            raise ConfigurationError(f"{path}:{_line(key_node)}: {key!r} cannot be a key")
        if key in values:
            raise ConfigurationError(
                f"{path}:{_line(key_node)}: {where} stands here and in line {lines[where]}: "
                "remove one of them"
            )
        lines[where] = _line(key_node)
        if isinstance(value_node, yaml.MappingNode):
            inside = (*outer, node)
            values[key] = _mapping(value_node, loader, path, f"{where}.", lines, inside)
        else:
            values[key] = loader.construct_object(value_node, deep=True)
    return values


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _sentence(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f":{mark.line + 1}" if mark else ""
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{path}{line}: not valid YAML: {problem}"
