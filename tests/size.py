"""The size of the code in logical lines: `python -m tests.size [FOLDER]` prints a JSON object.

A logical line is a statement, or the header of a compound one, as Python's tokenizer sees it.
Blank lines, comments, docstrings and the message catalogue are not counted.
"""

import ast
import io
import json
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("infrastructure", "colab", "temper")
# Proofs that are counted apart from the tests of each module.
PROOFS = ("faults", "field", "mutants")


def logical_lines(source: str) -> int:
    """Return the number of logical lines of a module, without its docstrings."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = sum(token.type == tokenize.NEWLINE for token in tokens)
    return lines - sum(map(_is_docstring, ast.walk(ast.parse(source))))


def _is_docstring(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def size(root: Path) -> dict[str, object]:
    """Count the product, its core (all but the features) and the tests of a checkout."""
    product: Counter[str] = Counter()
    for path in (p for name in PRODUCT for p in (root / name).rglob("*.py")):
        parts = path.relative_to(root).parts
        product["/".join(parts[:2]) if len(parts) > 2 else parts[0]] += logical_lines(_read(path))
    tests: Counter[str] = Counter()
    for path in (root / "tests").rglob("*.py"):
        part = path.relative_to(root / "tests").parts[0]
        tests["proofs" if part in PROOFS else "tests"] += logical_lines(_read(path))
    total = product.total()
    return {
        "product": total,
        "core": total - product["infrastructure/features"],
        **tests,
        "folders": dict(product.most_common()),
    }


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    print(json.dumps(size(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT), indent=2))
