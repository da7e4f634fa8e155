"""Names hold the words of the field: no identifier or module name is one of a private language.

Messages and documents may use any word; what the code calls a thing is what others call it.
"""

import ast
import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("infrastructure", "colab", "temper", "notebooks", "benchmarks", "examples")
# an identifier is split at its underscores and capitals
FORBIDDEN = frozenset(
    {
        *("told", "tell", "tells", "foretold", "foretell", "foretells"),
        *("said", "say", "says", "asked", "ask", "asks", "asking"),
        *("wish", "wishes", "wished", "taps"),
    }
)
FORBIDDEN_PAIRS = frozenset({("let", "go"), ("lets", "go"), ("plain", "answer"), ("way", "back")})
# whole names that hide what they hold; the product alone, as a test may well name what it found
FORBIDDEN_WHOLE = frozenset({"found", "took", "room", "way"})
ALLOWED = {
    ("attribute", "tell"): "the position in a file, a method of Python's files",
    ("attribute", "ask"): "colab.ask, which notebooks call",
    ("function", "ask"): "colab.ask, which notebooks call",
    ("file name", "ask"): "temper ask, the same on the command line",
    ("file name", "test_ask"): "of temper ask",
    ("argument", "say"): "of TrainingDeployment and TemperCallback, typed by whoever uses them",
    ("keyword", "say"): "of TrainingDeployment and TemperCallback, typed by whoever uses them",
    ("name", "foretold"): "a key of summary.json",
    ("name", "foretold_seconds"): "a key of quantum.json",
}


def words_of(identifier: str) -> list[str]:
    """`needsToSay_so` → needs, to, say, so."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)
    return [part.lower() for part in parts]


@functools.cache
def is_forbidden(identifier: str, is_product: bool) -> bool:
    words = words_of(identifier)
    if is_product and identifier.strip("_") in FORBIDDEN_WHOLE:
        return True
    return not FORBIDDEN.isdisjoint(words) or any(
        pair in FORBIDDEN_PAIRS for pair in itertools.pairwise(words)
    )


# what holds an identifier: its kind, and the attribute that the identifier stands in
HOLDERS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Name: ("name", "id"),
    ast.ExceptHandler: ("name", "name"),
    ast.MatchAs: ("name", "name"),
    ast.MatchStar: ("name", "name"),
    ast.MatchMapping: ("name", "rest"),
    ast.Attribute: ("attribute", "attr"),
    ast.arg: ("argument", "arg"),
    ast.keyword: ("keyword", "arg"),
    ast.FunctionDef: ("function", "name"),
    ast.AsyncFunctionDef: ("function", "name"),
    ast.ClassDef: ("class", "name"),
}


def identifiers(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Kind, identifier and line. A name that is only read is bound elsewhere, and found there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            yield "alias", node.asname or node.name, node.lineno
        elif (holder := HOLDERS.get(type(node))) and not (
            isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        ):
            kind, attribute = holder
            if name := getattr(node, attribute):
                yield kind, name, node.lineno  # type: ignore[attr-defined]


# a comment, or a string
PROSE = re.compile(r"""#[^\n]*|([bfru]{0,2})(\"{3}|'{3}|"|')(?:\\.|[^\\])*?\2""", re.S | re.I)


def code_of(text: str) -> str:
    """A source without its comments and strings, but with f-strings, which may bind names."""
    return PROSE.sub(lambda prose: prose[0] if "f" in (prose[1] or "").lower() else " ", text)


def has_forbidden_word(text: str, is_product: bool) -> bool:
    return any(is_forbidden(word, is_product) for word in set(re.findall(r"\w+", text)))


def forbidden_in(path: Path, text: str) -> list[str]:
    """`path:line: kind identifier` of each identifier that is to be renamed, the file name too.

    Args:
        path: below the root of the repository.
    """
    is_product = path.parts[0] in PRODUCT
    names = [("file name", part, 1) for part in (*path.parts[:-1], path.stem)]
    # parsing takes most of the time, and most files hold no such word, or in prose alone
    if has_forbidden_word(text, is_product) and has_forbidden_word(code_of(text), is_product):
        names += identifiers(ast.parse(text))
    return [
        f"{path}:{line}: {kind} {identifier}"
        for kind, identifier, line in names
        if (kind, identifier) not in ALLOWED and is_forbidden(identifier, is_product)
    ]


def sources() -> list[Path]:
    folders = (ROOT / folder for folder in (*PRODUCT, "tests"))
    files = (path.relative_to(ROOT) for folder in folders for path in folder.rglob("*.py"))
    return sorted(files)


def test_identifiers_hold_the_words_of_the_field() -> None:
    paths = sources()
    assert len(paths) > 1000
    assert [
        fault for path in paths for fault in forbidden_in(path, (ROOT / path).read_text())
    ] == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("told = 1", "name"),
        ("for lines, said in pairs: pass", "name"),
        ("if (asked := wanted()): pass", "name"),
        ("try: pass\nexcept OSError as told: pass", "name"),
        ("match row:\n    case [*said]: pass", "name"),
        ("state.asked_at = 1", "attribute"),
        ("print(state.plain_answer)", "attribute"),
        ("def show(*, let_go): pass", "argument"),
        ("lambda says: says", "argument"),
        ("show(foretold=1)", "keyword"),
        ("def says_so(): pass", "function"),
        ("async def _tell(): pass", "function"),
        ("class PlainAnswer: pass", "class"),
        ("class NothingTold: pass", "class"),
        ("import rows as way_back", "alias"),
        ("from rows import ask_all", "alias"),
        ("'it\\'s #'; told = 1 # told", "name"),
        ('"""a "word" \\"""; said\\n""" ""; told = r"\\""', "name"),
        ("print(f'# {(told := 1)}')", "name"),
    ],
)
def test_a_planted_word_is_seen(text: str, kind: str) -> None:
    (fault,) = forbidden_in(Path("tests/test_rows.py"), text)
    assert fault.startswith("tests/test_rows.py:")
    assert f": {kind} " in fault


@pytest.mark.parametrize("path", ["tests/asking.py", "tests/way_back/rows.py"])
def test_a_planted_file_name_is_seen(path: str) -> None:
    (fault,) = forbidden_in(Path(path), "")
    assert ": file name " in fault


def test_a_whole_name_that_hides_what_it_holds_is_seen_in_the_product() -> None:
    assert len(forbidden_in(Path("infrastructure/rows.py"), "found = _room = rows")) == 2
    assert forbidden_in(Path("tests/test_rows.py"), "found = room = rows") == []


@pytest.mark.parametrize(
    "text", ["task = mask = essay = row", "print('told')  # told", "file.tell()", "run(say=print)"]
)
def test_what_is_allowed_is_not_seen(text: str) -> None:
    assert forbidden_in(Path("tests/test_rows.py"), text) == []
