"""Reference pages that are generated from the code when the documentation is built.

A hook of mkdocs (see mkdocs.yml). It also makes links to files of the repository absolute.
"""

import argparse
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import temper
from infrastructure.commands.main import HIDDEN, create_parser
from infrastructure.commands.parser import CommandParser, subcommands
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import allowed_values, plain
from infrastructure.config.merging.effect import conditions_of
from infrastructure.config.schema import FieldSpec, schema_of
from infrastructure.config.sources.flags import SETTINGS_DEST, flag_names

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
BELOW_GUIDES = "---\nsearch:\n  boost: 0.8\n---\n\n"  # in the results of the search
FEW_SETTINGS = 20  # so few are shown among a command's own arguments
LINE_LENGTH = 88
OUTSIDE = re.compile(r"\]\(\.\./(?!#)([^)\s]+)\)")


def settings_page() -> str:
    """List every setting, section by section."""
    lines = ["# Settings", "", "A flag, a YAML key and a Python keyword set the same setting.", ""]
    sections: dict[str, list[str]] = {}
    for key, spec in schema_of(DeploymentConfig).fields.items():
        name = key.rpartition(".")[0] or "The whole run"
        sections.setdefault(name, []).append(_setting_row(key, spec))
    for name, rows in sections.items():
        head = _table_head("setting", "values", "default", "description")
        lines += [f"## {name}", "", *head, *rows, ""]
    return "\n".join(lines)


def _table_head(*names: str) -> list[str]:
    return [f"| {' | '.join(names)} |", f"| {' | '.join('---' for _ in names)} |"]


def _setting_row(key: str, spec: FieldSpec) -> str:
    flags = "<br>".join(f"`{flag}`" for flag in flag_names(key))
    default = "on" if spec.default is not None and spec.is_switch else plain(spec.default)
    takes = "true or false" if spec.is_switch else allowed_values(spec.info)
    unused = [one.reason() for one in conditions_of(spec)]
    note = f" No effect in this case: {'; or '.join(unused)}." if unused else ""
    cells = [f"`{key}`<br>{flags}", takes, f"`{default}`", f"{spec.description}{note}"]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def commands_page() -> str:
    """List every command and action with its flags; those of settings once, under `train`."""
    parser = create_parser()
    lines = ["# Commands", "", "```text", parser.format_help().rstrip(), "```", ""]
    for name, command in subcommands(parser).items():
        if name != HIDDEN:
            lines += _command_section(f"temper {name}", command, "##")
    return "\n".join(lines)


def _command_section(title: str, command: CommandParser, marks: str) -> Iterator[str]:
    """Yield the arguments of a command, then those of its actions, one heading level down."""
    yield from (f"{marks} {title}", "", command.description or "", "")
    own, settings = _arguments(command)
    if len(settings) < FEW_SETTINGS:
        own, settings = [*own, *settings], []
    yield from map(_argument, own)
    if settings and title == "temper train":
        head = "These flags set the [settings](settings.md)."
        yield from (f"{marks}# Flags of settings", "", head, "")
        yield from map(_argument, settings)
    elif settings:
        yield f"Also accepts the {len(settings)} [flags of settings](#flags-of-settings).\n"
    for name, action in subcommands(command).items():
        yield from _command_section(f"{title} {name}", action, f"{marks}#")


def _arguments(command: CommandParser) -> tuple[list[argparse.Action], list[argparse.Action]]:
    """Return a command's own arguments, and its flags for settings."""
    shown = [
        action
        for action in command.complete()._actions
        if action.help is not argparse.SUPPRESS
        and not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
    ]
    settings = [action for action in shown if action.dest == SETTINGS_DEST]
    return [action for action in shown if action not in settings], settings


def _argument(action: argparse.Action) -> str:
    """Return a definition: how an argument is spelled, and what it means."""
    metavar = str(action.metavar or action.dest.upper())
    takes = argparse.HelpFormatter("")._format_args(action, metavar)
    spelled = [f"`{f'{flag} {takes}'.rstrip()}`" for flag in action.option_strings]
    meaning = (action.help or "").replace("%%", "%")
    return f"{', '.join(spelled or [f'`{takes}`'])}\n:   {meaning}\n"


def python_page() -> str:
    """Describe every name that `import temper` exports."""
    lines = [
        "# Python",
        "",
        "`import temper` exports these names. Each one is loaded when you first use it.",
        "",
    ]
    for name in sorted(temper.__all__):
        lines += [f"## {name}", "", *_described(getattr(temper, name)), ""]
    return "\n".join(lines)


def _described(value: Any) -> Iterator[str]:
    if callable(value):
        yield "```python"
        yield f"{value.__name__}{_signature(value)}"
        yield "```"
        yield ""
    yield "```text"
    yield inspect.getdoc(value) or "A value."
    yield "```"


def _signature(value: Any) -> str:
    """Return the parameters, one on each line if they are long."""
    if isinstance(value, type) and issubclass(value, BaseModel):
        return "(**settings)"  # they are on the page of settings
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):
        return "(…)"
    text = re.sub(r"\b(?:[a-z_]+\.)+([A-Z]\w*)", r"\1", str(signature))
    if len(value.__name__) + len(text) <= LINE_LENGTH:
        return text
    depth, written = 0, ""
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        is_after_comma = depth == 1 and written.endswith(",") and character == " "
        is_end = not depth and character == ")"
        written += ",\n)" if is_end else "\n    " if is_after_comma else character
        if written == "(":
            written += "\n    "
    return written


PAGES = {
    "reference/settings.md": settings_page,
    "reference/commands.md": commands_page,
    "reference/python.md": python_page,
}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    from mkdocs.structure.files import File

    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=f"{BELOW_GUIDES}{page()}"))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Make links to files of the repository absolute."""
    return OUTSIDE.sub(rf"]({REPOSITORY}/blob/main/\1)", markdown)
