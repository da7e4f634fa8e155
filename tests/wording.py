"""Count the tests that hold a sentence of the product: `python -m tests.wording [ROOT]`.

A test holds one if a string of it, of three words or more, occurs in what the product shows: in a
string of its code that is no docstring, or in the catalogue of messages. Such a test fails when
words are changed and nothing else.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PRODUCT = ("infrastructure", "colab", "temper")
THREE_WORDS = re.compile(r"[a-z]{2,}[,;:]? [a-z]{2,}[,;:]? [a-z]{2,}")


def strings_of(tree: ast.AST) -> Iterator[str]:
    """The strings of a source, but for docstrings; of an f-string its constant parts."""
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.Expr))
    docstrings = {id(node.value) for node in statements}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in docstrings:
            yield " ".join(node.value.split())  # type: ignore[attr-defined]


def shown(root: Path) -> str:
    """Everything that the product shows, in one text."""
    files = [path for name in PRODUCT for path in sorted((root / name).rglob("*.py"))]
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in files)
    parts = [text for tree in trees for text in strings_of(tree)]
    for path in sorted((root / "infrastructure").glob("core/catalogue/*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8")).values():
            parts += [" ".join(text.split()) for text in entry.values()]
    return "\n".join(part for part in parts if THREE_WORDS.search(part))


def pieces(text: str) -> Iterator[str]:
    """The plain pieces of a string that may be a regular expression."""
    for piece in re.split(r"\\[dwsS.()\[\]{}+*?]|[.()\[\]{}+*?|^$]+|\n", text):
        if THREE_WORDS.search(piece):
            yield piece.strip(" ,;:")


def tests_with_sentences(root: Path) -> tuple[list[str], int]:
    """The tests that hold a sentence, and how many tests there are."""
    corpus = shown(root)
    holding, total = [], 0
    for path in sorted((root / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            total += 1
            if any(piece in corpus for text in strings_of(node) for piece in pieces(text)):
                holding.append(f"{path.relative_to(root)}::{node.name}")
    return holding, total


if __name__ == "__main__":
    names, count = tests_with_sentences(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
    print(*names, sep="\n")
    print(f"{len(names)} of {count} tests hold a sentence of the product")
