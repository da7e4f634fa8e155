"""Every message that code names has words, which name just what the code says it is about."""

import ast
import re
import string
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from infrastructure.commands.main import COMMANDS, SAME_COMMANDS
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.core.messages import ARGUMENTS, CODE, INTERRUPT, catalogue_files, words_of

ROOT = Path(__file__).parents[2]
SOURCES = ("infrastructure", "colab", "temper")


@cache
def entries() -> frozenset[str]:
    names = re.compile(r"^\[([a-z0-9_]+)\]$", re.MULTILINE)
    return frozenset(
        f"{topic}.{name}"
        for topic, path in catalogue_files().items()
        for name in names.findall(path.read_text(encoding="utf-8"))
    )


@cache
def mentions() -> tuple[tuple[str, str, frozenset[str] | None], ...]:
    """Place, code, and the names that a call gives; None where a table holds the code alone."""
    return tuple(_mentions())


@cache
def nodes_of_sources() -> dict[Path, tuple[ast.AST, ...]]:
    """All nodes of each module; to parse and walk through them takes seconds."""
    paths = sorted(path for name in SOURCES for path in (ROOT / name).rglob("*.py"))
    return {path: tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in paths}


def _mentions() -> Iterator[tuple[str, str, frozenset[str] | None]]:
    topics = {*catalogue_files()}
    for path, nodes in nodes_of_sources().items():
        of_calls: dict[int, ast.Call] = {}
        for node in nodes:
            if isinstance(node, ast.Call) and node.args:
                first = node.args[0]
                for one in (
                    first,
                    *([first.body, first.orelse] if isinstance(first, ast.IfExp) else []),
                ):
                    of_calls[id(one)] = node
        for node in nodes:
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            if not CODE.fullmatch(node.value) or node.value.partition(".")[0] not in topics:
                continue
            call = of_calls.get(id(node))
            is_message = call is not None and _is_of_messages(call)
            if not is_message and node.value not in entries():
                continue
            place = f"{path.relative_to(ROOT)}:{node.lineno}"
            given = None
            if is_message and call is not None and all(k.arg for k in call.keywords):
                given = frozenset(str(k.arg) for k in call.keywords)
                if len(call.args) == 2 and isinstance(call.args[1], ast.Dict):  # of a Message
                    given = frozenset(ast.literal_eval(key) for key in call.args[1].keys if key)
            yield place, node.value, given


def _choices(nodes: list[ast.expr]) -> list[ast.expr]:
    """The first argument of a call, or either one of a choice."""
    return [
        one for n in nodes for one in ((n.body, n.orelse) if isinstance(n, ast.IfExp) else (n,))
    ]


def _is_of_messages(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in {"phrase", "Message"} or name.endswith("Error")


def names_in(words: str) -> set[str]:
    found = set()
    for _, name, spec, _ in string.Formatter().parse(words):
        if name is None:
            continue
        if not name.startswith("="):
            found.add(name)
        found |= names_in(spec or "")
    return found


def test_every_code_has_words() -> None:
    assert [(place, code) for place, code, _ in mentions() if code not in entries()] == []


def names_something_else(text: str) -> bool:
    """A file, a setting, the beginning of settings, or a property of a section."""
    schema = schema_of(DeploymentConfig)
    keys = {*schema.fields, *schema.spellings, *schema.sections, *schema.section_spellings}
    section, _, name = text.partition(".")
    return (
        text in keys
        or text.endswith((".json", ".jsonl"))
        or (text.endswith("_") and any(key.startswith(text) for key in keys))
        or hasattr(getattr(DeploymentConfig(), section, None), name)
    )


def test_whatever_has_the_form_of_a_code_is_one() -> None:
    """Also in tables, where no call shows that a text is a code."""
    topics = {*catalogue_files()}
    texts = {
        node.value
        for nodes in nodes_of_sources().values()
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    codes = {one for one in texts if CODE.fullmatch(one) and one.partition(".")[0] in topics}
    assert {one for one in codes - entries() if not names_something_else(one)} == set()


def beginnings() -> set[str]:
    """How codes begin whose end is a value: `phrase(f"backup.state_{state}")`."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / SOURCES[0]).rglob("*.py"))
    pattern = re.compile(r"""phrase\(f"([a-z0-9_]+\.[a-z0-9_]+)\{""")
    return {name for source in sources for name in pattern.findall(source)}


def test_no_words_are_left_of_a_message_that_is_gone() -> None:
    unused = entries() - {code for _, code, _ in mentions()}
    assert {code for code in unused if not code.startswith(tuple(beginnings()))} == set()


# Errors whose attributes are no part of their words.
OF_ERRORS = frozenset({"differences", "hub_reachable"})


def test_words_name_what_a_message_is_about() -> None:
    wrong = []
    for place, code, given in mentions():
        words = words_of(code)
        if given is None or words is None:
            continue
        named = names_in(words)
        if named != given - (OF_ERRORS - named):
            wrong.append((place, code, sorted(named ^ given)))
    assert wrong == []


def settings_in(words: str) -> set[str]:
    return {
        name[1:] for _, name, _, _ in string.Formatter().parse(words) if name and name[0] == "="
    }


def settings_in_code() -> Iterator[tuple[str, str]]:
    pattern = re.compile(r'\bSetting\(\s*"([a-z_.]+)"')
    for path in sorted(p for name in SOURCES for p in (ROOT / name).rglob("*.py")):
        for key in pattern.findall(path.read_text(encoding="utf-8")):
            yield str(path.relative_to(ROOT)), key


def test_every_setting_that_a_message_names_exists() -> None:
    known = {*schema_of(DeploymentConfig).fields, *ARGUMENTS, INTERRUPT}
    named = [(code, key) for code in entries() for key in settings_in(words_of(code) or "")]
    assert [(place, key) for place, key in [*named, *settings_in_code()] if key not in known] == []


def test_every_command_that_a_message_names_exists() -> None:
    known = {*COMMANDS, *SAME_COMMANDS, "help"}
    named = [
        (code, command)
        for code in entries()
        for command in re.findall(r"`temper ([a-z]+)", words_of(code) or "")
    ]
    assert named
    assert [(code, command) for code, command in named if command not in known] == []
