"""What the documents say can be typed: every *.md file of the repository, and the page for agents.

Fences close, nothing stands there twice, links lead somewhere; each command line goes through the
parser that it is meant for, each flag, setting, variable, target, module and name exists.
"""

import ast
import builtins
import importlib
import importlib.util
import inspect
import itertools
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import colab
import temper
from infrastructure.commands.main import create_parser
from infrastructure.commands.parser import known_flags, parse, subcommands
from infrastructure.config.aliases import canonical, canonical_section
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.presets import PRESET
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.environment import (
    DISABLING,
    OTHER_VARIABLES,
    VARIABLES,
    variable_of,
)
from infrastructure.config.sources.flags import flags_given, key_of_keyword
from infrastructure.config.sources.load import load_config

ROOT = Path(__file__).resolve().parent.parent
HISTORY = "CHANGELOG.md"  # names what there was once
MAP = "infrastructure/README.md"
FENCE = re.compile(r" {0,3}```(.*)")
SCHEMA = schema_of(DeploymentConfig)

# What another library, the launch script, torchrun or a benchmark has, not the temper command.
FOREIGN_NAMES = {"save_steps", "load_best_model_at_end", "assert_sampler_api"}
FOREIGN_FLAGS = {
    *("--with-unsloth", "--depth", "--nproc-per-node", "--selections", "--kinds", "--read-before"),
    "--nbmake",
    *(
        "--before",
        "--scenario",
        "--quickstart",
        "--compile",
        "--data",
        "--check",
        "--precision",
        "--write",
    ),
}

# Modules that the reader of a document writes.
OWN_MODULES = {"my_parts"}

# Names that stand for any name.
EXAMPLES = {"--x", "--no-x", "model.a.b", "infrastructure/a/b.py", "tests/a/test_b.py"}


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    document: str
    line: int
    language: str
    text: str


def tracked(pattern: str) -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", "-z", pattern], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = [name for name in done.stdout.split("\0") if name]
    return names or [path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)]


AGENTS_PAGE = "llms.txt"  # Markdown, too
DOCUMENTS = [*tracked("*.md"), AGENTS_PAGE]
PRESENT = [name for name in DOCUMENTS if name != HISTORY]


@cache
def taken_apart(document: str) -> tuple[str, list[Block], list[str]]:
    """(the text outside fences, the blocks, what is wrong with the fences)."""
    prose: list[str] = []
    blocks: list[Block] = []
    wrong: list[str] = []
    opened: tuple[int, str] | None = None
    inside: list[str] = []
    for number, line in enumerate((ROOT / document).read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if not fence:
            (prose if opened is None else inside).append(line)
        elif opened is None:
            opened, inside = (number, fence[1].strip()), []
        elif fence[1].strip():
            wrong.append(f"{document}:{number}: a fence opens inside that of line {opened[0]}")
        else:
            blocks.append(Block(document, *opened, "\n".join(inside)))
            opened = None
            prose.append("")
    if opened is not None:
        wrong.append(f"{document}:{opened[0]}: this fence is never closed")
    return "\n".join(prose), blocks, wrong


def prose_of(document: str) -> str:
    return taken_apart(document)[0]


def blocks_of(*languages: str) -> list[Block]:
    every = itertools.chain.from_iterable(taken_apart(name)[1] for name in PRESENT)
    return [block for block in every if block.language in languages]


def spans() -> Iterator[tuple[str, str]]:
    """(document, what stands between two backticks) of all prose but the history's."""
    for document in PRESENT:
        text = re.sub(r"(?<=\S)\n(?=\S)", " ", prose_of(document))
        for found in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text):
            yield document, found[1]


def paragraphs(document: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", prose_of(document))]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_fences_close_and_do_not_nest(document: str) -> None:
    assert taken_apart(document)[2] == []


@pytest.mark.parametrize("document", PRESENT)
def test_no_fence_swallows_a_heading(document: str) -> None:
    """A heading in a block without a language is prose that lost its fence."""
    swallowed = [
        f"{document}:{block.line}: {line}"
        for block in taken_apart(document)[1]
        if not block.language
        for line in block.text.splitlines()
        if re.match(r"#{1,6} \S", line)
    ]
    assert swallowed == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_nothing_stands_there_twice(document: str) -> None:
    long = [part for part in paragraphs(document) if len(part) > 60]
    assert [part for part in set(long) if long.count(part) > 1] == []
    text = prose_of(document)
    titles = re.findall(r"^#{2,6} .+", text, re.M) if document != HISTORY else []
    titles += re.findall(r"(?:\A|\n\s*\n)\*\*([^*]+)\*\*", text)
    assert [title for title in set(titles) if titles.count(title) > 1] == []


@cache
def anchors(document: str) -> set[str]:
    """The anchors of a document's headings, as GitHub names them."""
    seen: dict[str, int] = {}
    found = set()
    for heading in re.findall(r"^#{1,6} +(.+?)\s*$", prose_of(document), re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        times = seen.get(slug, 0)
        seen[slug] = times + 1
        found.add(f"{slug}-{times}" if times else slug)
    return found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(document)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / document).parent / path if path else ROOT / document
        name = there.resolve().relative_to(ROOT).as_posix()
        if not there.exists() or (anchor and anchor not in anchors(name)):
            wrong.append(target)
    assert wrong == []


@pytest.mark.parametrize("document", PRESENT)
def test_a_link_that_names_a_file_leads_to_it(document: str) -> None:
    """`[a.py](b.py)` is a name that a file had before."""
    named = re.findall(r"\[([\w./]+\.(?:py|md|sh))\]\(([^)\s#]+)", prose_of(document))
    assert [text for text, target in named if Path(text).name != Path(target).name] == []


def typed_lines() -> list[tuple[str, list[str]]]:
    """(where it stands, its words) of every command line: in blocks, and between backticks."""
    shown = [
        (f"{block.document}:{block.line + number}", line)
        for block in blocks_of("bash", "sh", "")
        for number, line in enumerate(block.text.replace("\\\n", "").splitlines(), 1)
    ]
    shown += list(spans())
    found = []
    for where, line in shown:
        command = line.strip().removeprefix(".venv/bin/")
        if not re.match(r"(temper|make|python|torchrun|accelerate|\./)[ /]?", command):
            continue
        try:
            words = shlex.split(command, comments=True)
        except ValueError:  # a sentence, not a command
            continue
        found.append((where, words))
    return found


LINES = typed_lines()


def temper_arguments(words: list[str]) -> list[str] | None:
    """The arguments of `temper` in a command line, however it is started there."""
    if words[0] == "temper":
        return words[1:]
    for start in range(len(words) - 1):
        if words[start : start + 2] == ["-m", "infrastructure"]:
            return words[start + 2 :]
    return None


def alternatives(arguments: list[str]) -> Iterator[list[str]]:
    """`a|b [RUN]` as the lines that it stands for; `…` is for whatever else is typed."""
    plain = [word.strip("[]") for word in arguments if word != "…"]
    for chosen in itertools.product(*(word.split("|") for word in plain)):
        yield list(chosen)


TEMPER_LINES = [
    (where, line)
    for where, words in LINES
    if (arguments := temper_arguments(words)) is not None
    for line in alternatives(arguments)
]


def test_there_are_lines_to_look_at() -> None:
    assert len(TEMPER_LINES) > 30
    assert len([words for _, words in LINES if words[0] == "make"]) > 5
    assert len(blocks_of("python")) > 5


PARSER = create_parser()


@pytest.mark.parametrize(("where", "line"), TEMPER_LINES, ids=lambda part: str(part)[:60])
def test_a_temper_line_parses(
    where: str, line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the real parser, and each value by the rule of its setting."""
    monkeypatch.chdir(tmp_path)
    if "--help" in line:
        line.remove("--help")
    if line == ["--version"]:
        with pytest.raises(SystemExit, match="0"):
            parse(PARSER, line)
        return
    options = parse(PARSER, line)
    load_config(None, flags=flags_given(options))


def flags_of_temper() -> set[str]:
    parser = create_parser()
    found = set(known_flags(parser))
    for command, subparser in subcommands(parser).items():
        found |= set(known_flags(parser, command))
        for action in subcommands(subparser):
            found |= set(known_flags(parser, command, action))
    return found


def test_every_flag_exists() -> None:
    known = flags_of_temper() | FOREIGN_FLAGS | EXAMPLES
    texts = [(where, span) for where, span in spans()]
    texts += [(block.document, block.text) for block in blocks_of("bash", "sh", "")]
    named = {
        (where, flag)
        for where, text in texts
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)
    }
    assert sorted((where, flag) for where, flag in named if flag not in known) == []


def targets_of_make() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


def test_every_make_target_and_variable_exists() -> None:
    rules = (ROOT / "Makefile").read_text()
    wrong = []
    for where, words in LINES:
        if words[0] != "make":
            continue
        for word in words[1:]:
            name, is_variable, _ = word.partition("=")
            is_used = bool(re.search(rf"[( ]{name}\)", rules))
            if not (is_used if is_variable else name in targets_of_make()):
                wrong.append((where, word))
    assert wrong == []


def test_every_module_that_is_started_exists() -> None:
    wrong = []
    for where, words in LINES:
        for flag, module in itertools.pairwise(words):
            if flag == "-m" and importlib.util.find_spec(module) is None:
                wrong.append((where, module))
    assert wrong == []


def settings_named() -> Iterator[tuple[str, str]]:
    """`section.field`, `section.field value` and `field: value` in the prose."""
    heads = {key.split(".")[0] for key in SCHEMA.sections}
    for document, span in spans():
        dotted = re.fullmatch(r"([a-z_]+(?:\.[a-z_0-9]+)+)(?:[ :=].*)?", span)
        if dotted and dotted[1].split(".")[0] in heads and not dotted[1].endswith((".py", ".json")):
            yield document, dotted[1]
        elif pair := re.fullmatch(r"([a-z_]+): \S+", span):
            yield document, pair[1]


def test_every_setting_exists() -> None:
    leaves = {key.rpartition(".")[2] for key in SCHEMA.fields}
    known = SCHEMA.fields.keys() | SCHEMA.sections.keys() | EXAMPLES | {PRESET}
    named = list(settings_named())
    assert len(named) > 8
    wrong = [
        (where, key)
        for where, key in named
        if key not in leaves
        and canonical(key) not in known
        and canonical_section(key) not in {"training.qlora_"} | known
    ]
    assert wrong == []


def test_every_variable_of_the_environment_exists() -> None:
    known = {*VARIABLES, *DISABLING, *OTHER_VARIABLES, variable_of(PRESET)}
    known |= {variable_of(key) for key in SCHEMA.fields}
    pattern = re.compile(r"\b(?:TEMPER_[A-Z_]+|DISABLE_[A-Z]+)\b")
    blocks = [(block.document, block.text) for block in blocks_of("bash", "sh", "")]
    named = {(where, name) for where, text in [*spans(), *blocks] for name in pattern.findall(text)}
    assert named
    pattern_only = {"TEMPER_"}  # `TEMPER_<SECTION>__<FIELD>` is a rule, not a name
    assert sorted(pair for pair in named if pair[1] not in known | pattern_only) == []


@cache
def sources() -> dict[Path, str]:
    folders = (ROOT / package for package in ("infrastructure", "colab", "benchmarks", "tests"))
    return {path: path.read_text() for folder in folders for path in folder.rglob("*.py")}


def names_in(text: str) -> set[str]:
    """Every name that a source defines or uses, and every string that it holds."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


def not_in_the_project(names: set[str]) -> list[str]:
    """Those of the names that no source has, and no source's file or folder is called."""
    missing = set(names)
    for path, text in sources().items():
        missing -= {path.stem, path.parent.name}
        # parsing takes most of the time, and few files have a name that no file before them had
        if any(name in text for name in missing):
            missing -= names_in(text)
    return sorted(missing)


def test_every_name_that_people_read_exists() -> None:
    """`a_name` and `call()`: a setting, or something that the project's sources have."""
    known = FOREIGN_NAMES | {part for key in SCHEMA.fields for part in key.split(".")}
    named = {
        found[1]
        for document, span in spans()
        if document.startswith(("README", "docs/", "CONTRIBUTING", MAP))
        and (found := re.fullmatch(r"([a-z]+(?:_[a-z]+)+)(\(\))?", span))
    }
    assert len(named) > 8
    assert not_in_the_project(named - known) == []


def test_every_name_of_the_map_exists() -> None:
    """Also `a_call(…)`, `AClass` and `A_CONSTANT`; and `file.py` below whichever folder."""
    known = {part for key in SCHEMA.fields for part in key.split(".")}
    known |= {*dir(builtins), *FOREIGN_NAMES}
    found = [span for document, span in spans() if document == MAP]
    calls = [re.fullmatch(r"(?:[A-Za-z_.]+\.)?([A-Za-z]\w*)\(.*\)", span) for span in found]
    named = {call[1] for call in calls if call}
    named |= {span for span in found if re.fullmatch(r"_?[a-z]+(?:_[a-z]+)+|[A-Z]\w+", span)}
    assert len(named) > 50
    assert not_in_the_project(named - known) == []
    files = [span for span in found if re.fullmatch(r"[\w/]+\.py", span)]
    assert len(files) > 10
    assert [
        f for f in files if not any(f"/{name}".endswith(f"/{f}") for name in tracked("*"))
    ] == []


def test_the_map_finds_what_it_names_in_a_file() -> None:
    """`[a.py](a.py): `name`` in a row of "Where is": the file defines it."""
    rows = re.findall(r"\]\(([\w./]+\.py)\): ((?:`\w+`(?:, )?)+)", prose_of(MAP))
    assert len(rows) > 5
    wrong = []
    for path, names in rows:
        tree = ast.parse((ROOT / MAP).parent.joinpath(path).read_text())
        defined = {getattr(node, "name", "") for node in ast.walk(tree)}
        wrong += [(path, name) for name in re.findall(r"\w+", names) if name not in defined]
    assert wrong == []


def lists_of_the_map() -> dict[str, list[str]]:
    """What each list of a folder's files names; such a list begins with the folder's line."""
    lists: dict[str, list[str]] = {}
    for block in taken_apart(MAP)[1]:
        folder = ""
        for line in block.text.splitlines():
            entry = re.match(r"  (\S.*?)(?:  |$)", line)
            if re.fullmatch(r"[\w/]+/", line):
                folder = line
            elif folder and entry:
                lists.setdefault(folder, []).extend(entry[1].split(" · "))
    return lists


@pytest.mark.parametrize(("folder", "names"), lists_of_the_map().items())
def test_a_list_of_the_map_has_all_files_of_its_folder(folder: str, names: list[str]) -> None:
    """And no other; one with `…` does not name all."""
    path = ROOT / folder if folder == "colab/" else ROOT / "infrastructure" / folder
    there = {f"{found.parent.name}/" for found in path.glob("*/__init__.py")}
    there |= {found.stem for found in path.glob("*.py") if not found.name.startswith("__")}
    assert [name for name in names if name not in there | {"…"}] == []
    assert len(names) == len(set(names))
    if "…" not in names:
        assert sorted(there - set(names)) == []


def test_the_map_has_lists() -> None:
    assert len(lists_of_the_map()) > 8


def test_every_path_of_the_project_exists() -> None:
    """A path that begins with a file or folder of the repository leads somewhere in it."""
    top = {path.split("/")[0] for path in tracked("*")}
    wrong = [
        (where, span)
        for where, span in spans()
        if re.fullmatch(r"[\w./-]+/[\w./-]*", span)
        and span.split("/")[0] in top
        and span not in EXAMPLES
        and not (ROOT / span).exists()
    ]
    assert wrong == []


PYTHON = blocks_of("python")


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: f"{block.document}:{block.line}")
def test_a_python_block_compiles_and_uses_what_there_is(block: Block) -> None:
    """Imports resolve, names of imported modules exist, and calls fit the signatures.

    What an earlier block of the same document has imported, a later one may use.
    """
    known: dict[str, Any] = dict(vars(builtins))
    for earlier in PYTHON[: PYTHON.index(block) + 1]:
        if earlier.document == block.document:
            known |= imported(ast.parse(earlier.text))
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Call):
            check_call(node, known)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = known.get(node.value.id)
            assert not isinstance(owner, ModuleType) or hasattr(owner, node.attr), node.attr


def imported(tree: ast.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name not in OWN_MODULES:
                    found[alias.asname or alias.name] = importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                found[alias.asname or alias.name] = getattr(module, alias.name)
    return found


def check_call(call: ast.Call, known: dict[str, Any]) -> None:
    function = called(call.func, known)
    if function is None or any(isinstance(part, ast.Starred) for part in call.args):
        return
    keywords = {word.arg: word.value for word in call.keywords if word.arg is not None}
    if function is DeploymentConfig:
        function(**{name: ast.literal_eval(value) for name, value in keywords.items()})
        return
    try:
        signature = inspect.signature(function)
    except ValueError:  # a built-in without one
        return
    signature.bind(*call.args, **keywords)
    if function in (temper.train, temper.resume, colab.configure):
        given = keywords.keys() - signature.parameters.keys()
        schema = schema_of(DeploymentConfig)
        assert {key_of_keyword(name) for name in given} <= schema.spellings.keys()


def called(node: ast.expr, known: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = known.get(node.value.id)
        return getattr(owner, node.attr) if isinstance(owner, ModuleType) else None
    return None


BYTES_PER_PARAMETER = {  # weights; gradients and AdamW's two states in fp32, where all are trained
    "4-bit QLoRA": 0.6,
    "LoRA in bf16": 2.0,
    "full fine-tuning": 4.0 + 4.0 + 8.0,
}
FOR_A_BATCH = 0.15  # of the memory


def test_what_fits_where_follows_from_the_sizes() -> None:
    """Each number of the table leaves memory for a batch, and uses more than a quarter of it."""
    table = re.search(r"\| memory \|(.*?)\n\n", (ROOT / "docs/models.md").read_text(), re.S)
    assert table is not None
    head, _, *rows = [line.strip("| ").split(" | ") for line in table[0].strip().splitlines()]
    assert head[1:] == [*BYTES_PER_PARAMETER]
    for memory, *cells in rows:
        gigabytes = re.search(r"(\d+) GB", memory)
        assert gigabytes is not None
        for kind, cell in zip(BYTES_PER_PARAMETER, cells, strict=True):
            billions = re.search(r"up to ([\d.]+) billion", cell)
            assert billions is not None
            needed = float(billions[1]) * BYTES_PER_PARAMETER[kind]
            assert needed <= (1 - FOR_A_BATCH) * int(gigabytes[1]), (memory, kind)
            assert needed * 4 > int(gigabytes[1]) or "CPU" in memory, (
                memory,
                kind,
            )  # which is slow before
