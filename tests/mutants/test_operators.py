"""What is planted where, and what is left alone."""

import ast
import sys
from pathlib import Path

import pytest

from tests.mutants.coverage import noting
from tests.mutants.named import named_mutants
from tests.mutants.operators import Mutant, lines_of_functions, mutants_of, statement_lines
from tests.mutants.run import ROOT, draw, modules
from tests.slow import slow_but

SOURCE = '''"""A module's words."""

import logging
from contextlib import suppress

LIMIT: int = 4
logger = logging.getLogger(__name__)


@decorated(1)
def work(items: list[int], at_least: int = 2, *, lock: object = None) -> int:
    """What it does."""
    logger.warning("more than %d", LIMIT + 1)
    assert items is not None
    total = 0
    with lock, suppress(KeyError):
        for item, _ in zip(items[1:], items, strict=True):
            if item > at_least and not item == 7:
                total += item
            else:
                continue
    try:
        send(total, "ä", timeout=3)
    except OSError as error:
        raise ValueError(f"no {LIMIT + 2}") from error
    except ValueError:
        total = -total
    return max(total, LIMIT)


class Thing:
    def __repr__(self) -> str:
        return "a" * 3
'''


def found(source: str = SOURCE) -> set[tuple[str, str, str]]:
    return {(mutant.operator, mutant.old, mutant.new) for mutant in mutants_of("a.py", source)}


def test_each_kind_of_defect_is_found() -> None:
    expected = {
        ("constant", "4", "5"),
        ("constant", "4", "(3)"),
        ("remove decorator", "@decorated(1)", "#@decorated(1)"),
        ("remove context", "lock", '__import__("contextlib").nullcontext()'),
        ("slice bound", "1:", ":"),
        ("comparison", "item > at_least", "(item >= at_least)"),
        ("comparison", "item > at_least", "(item <= at_least)"),
        ("drop operand", "item > at_least and not item == 7", "(item > at_least)"),
        ("and, or", "item > at_least and not item == 7", "(item > at_least or not item == 7)"),
        ("drop not", "not item == 7", "(item == 7)"),
        ("remove statement", "total += item", "pass"),
        ("arithmetic", "total += item", "total -= item"),
        ("break and continue", "continue", "break"),
        ("drop keyword", 'send(total, "ä", timeout=3)', "send(total, 'ä')"),
        ("swap arguments", 'send(total, "ä", timeout=3)', "send('ä', total, timeout=3)"),
        ("do not handle", "total = -total", "raise"),
        ("drop minus", "-total", "(total)"),
        ("return None", "return max(total, LIMIT)", "return None"),
        ("other function", "max", "min"),
    }
    assert expected <= found()


def test_words_types_and_what_only_a_checker_reads_are_left_alone() -> None:
    left_alone = (
        "more than",
        "LIMIT + 1",
        "True",
        "LIMIT + 2",
        "is not None",
        '"a" * 3',
        "words",
        "int",
    )
    changed = [old for operator, old, _ in found() if operator != "negate condition"]
    assert not [old for old in changed for part in left_alone if old == part]
    assert not [old for old in changed if old.startswith(("assert", "logger"))]
    assert ("drop keyword", "zip") not in {(one, old[:3]) for one, old, _ in found()}


def test_a_defect_changes_its_place_and_no_line_before_or_after_it() -> None:
    for mutant in mutants_of("a.py", SOURCE):
        text = mutant.apply(SOURCE)
        assert text != SOURCE
        ast.parse(text)
        lines, before = text.splitlines(), SOURCE.splitlines()
        assert lines[: mutant.line - 1] == before[: mutant.line - 1]


def test_a_defect_keeps_its_name_when_lines_are_added_elsewhere() -> None:
    def keys(source: str) -> dict[str, Mutant]:
        return {mutant.key: mutant for mutant in mutants_of("a.py", source)}

    now, later = keys(SOURCE), keys(SOURCE.replace("LIMIT: int", "MORE = []\nLIMIT: int"))
    assert now.keys() == later.keys()
    assert all(later[key].line in (one.line, one.line + 1) for key, one in now.items())


def test_the_lines_of_a_statement_and_of_functions() -> None:
    lines = SOURCE.splitlines()
    number = next(n for n, line in enumerate(lines, 1) if "if item" in line)
    assert statement_lines(SOURCE, number) == {number}
    assert any(first <= number <= last for first, last in lines_of_functions(SOURCE))


def test_a_seed_draws_the_same_defects_again() -> None:
    some = modules()[::120]
    drawn = draw(200, 14, some)
    assert [mutant.key for mutant in drawn] == [mutant.key for mutant in draw(200, 14, some)]
    assert {m.key for m in draw(50, 14, some)} <= {m.key for m in drawn}
    assert {m.key for m in draw(50, 15, some)} != {m.key for m in draw(50, 14, some)}


@pytest.mark.parametrize("every", slow_but([16], [16, 1]))
def test_defects_are_drawn_from_every_module(every: int) -> None:
    paths = modules()[::every]
    drawn = draw(1600 // every, 14, paths)
    assert len({mutant.key for mutant in drawn}) == len(drawn)
    assert len({mutant.module for mutant in drawn}) > len(paths) / 3
    assert all((ROOT / path).is_file() for path in modules())


def test_the_named_defects_can_still_be_planted() -> None:
    for mutant in named_mutants(ROOT):
        ast.parse(mutant.apply((ROOT / mutant.module).read_text()))


def test_a_copy_notes_each_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def twice(n):\n    for _ in range(2):\n        n += 1\n    return n\n"
    space: dict[str, object] = {}
    exec(noting("m.py", source, tmp_path), space)
    monkeypatch.setitem(sys.__dict__, "__noted_lines__", set())
    assert space["twice"](1) == 3  # type: ignore[operator]
    (written,) = tmp_path.glob("*.lines")
    assert sorted(written.read_text().split()) == ["m.py:2", "m.py:3", "m.py:4"]
