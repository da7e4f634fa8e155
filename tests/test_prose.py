"""Prose is plain English: no habit of another language in anything that people read.

Pages, the catalogue of messages, help and descriptions of settings, docstrings and comments of the
product, notebooks. `python -m tests.test_prose` counts what is left; with `--list`, line by line.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("infrastructure", "colab", "temper", "notebooks/src", "examples")
PAGES = ("*.md", "llms.txt", "docs/*.md", "skills/*/*.md", "infrastructure/**/*.md")
# What is written so, and what a native engineer of the field writes.
HABITS = {
    r"(?:go(?:es|ing)?|went|gone) on\b": "resume, continue",
    r"where (?:there|nothing|nobody|none|no) ": "if",
    r"a training\b(?! (?:run|step|loop|set|script|job|token|example|row|process|loss|data|batch"
    r"|algorithm|configuration|decision|split|state|strategy))": "a run",
    r"trainings\b": "runs",
    r"all weights": "full fine-tuning",
    r"\beyes\b": "a vision encoder",
    r"set aside|sets aside|setting aside": "skipped",
    r"anew": "again",
    r"learnt": "trained, learned",
    r"(?<!there )(?:is|are|was|were) no "
    r"(?!longer|more\b|less\b|\w+er than\b|\w+ (?:is|are)\b)": "is not a",
    r"one's own|somebody|whoever|anybody": "your own, the user",
    r"mend(?:s|ed|ing)?": "fix",
    r"the place\b(?! of)": "the backup destination",
    r"brought back|bring(?:s|ing)? back": "restore",
    r"main memory": "CPU memory, system memory",
    r"number formats?": "dtype",
    r"with other (?:settings|data|values)": "with different settings",
    r"\d+ %(?! \d)": "97.5%, without a space",
    r"the others? (?:lies?|stands?)|lies there|where (?:all|everything) lies": "is in",
}
# The table of CONTRIBUTING that shows what not to write.
NOT_SO = re.compile(r"^\| not \| but \|(?:\n\|.*)*", re.MULTILINE)
PATTERNS = {habit: re.compile(rf"\b(?:{habit})", re.IGNORECASE) for habit in HABITS}


def texts() -> Iterator[tuple[str, str]]:
    """Where, and a piece of prose."""
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            prose = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
            prose = NOT_SO.sub("", prose)
            yield from ((f"{path.relative_to(ROOT)}", line) for line in prose.splitlines())
    for path in sorted((ROOT / "infrastructure/core/catalogue").glob("*.toml")):
        for code, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
            yield f"{path.stem}.{code}", re.sub(r"\{\w+\}", "{}", " ".join(entry.values()))
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from prose_of(path.relative_to(ROOT), path.read_text(encoding="utf-8"))


def prose_of(path: Path, source: str) -> Iterator[tuple[str, str]]:
    """Docstrings, comments, and the descriptions of settings and flags."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if (text := ast.get_docstring(node)) is not None:
                line = getattr(node, "lineno", 1)
                yield f"{path}:{line}", re.sub(r"``?[^`]*``?", "", " ".join(text.split()))
        elif isinstance(node, ast.keyword) and node.arg in ("description", "help"):
            yield f"{path}:{node.value.lineno}", str(getattr(node.value, "value", ""))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield f"{path}:{token.start[0]}", token.string


def faults() -> Iterator[tuple[str, str, str]]:
    for place, text in texts():
        for habit, pattern in PATTERNS.items():
            if (match := pattern.search(text)) is not None:
                around = text[max(0, match.start() - 40) : match.end() + 40]
                yield habit, place, around


def test_prose_is_plain_english() -> None:
    found = [f"{place}: {around} → {HABITS[habit]}" for habit, place, around in faults()]
    assert found == []


@pytest.mark.parametrize(
    "text",
    ["The run goes on.", "where there is a GPU", "all weights", "it is no folder", "set aside"],
)
def test_a_habit_is_seen(text: str) -> None:
    assert any(pattern.search(text) for pattern in PATTERNS.values())


if __name__ == "__main__":
    every = [*faults()]
    for habit, place, around in every if "--list" in sys.argv else []:
        print(f"{place}: {around}  [{habit}]")
    for habit, count in Counter(habit for habit, _, _ in every).most_common():
        print(f"{count:5} {habit} → {HABITS[habit]}")
    print(f"{len(every):5} in all")
