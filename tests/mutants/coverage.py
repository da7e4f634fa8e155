"""Which test runs which lines of the mutated modules, and how long it takes.

A test's time is recorded twice: on the clock, and of the processor, that of the processes which it
started and waited for included. The second does not depend on what else the machine does.

For the recording, the modules are replaced by copies that note each of their lines when it runs
for the first time in a test, in whatever process. What a fixture of several tests runs belongs to
all of them.
"""

import ast
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.forked_tests import ROOT, Report, run_pytest

NOTE = "__note_line__"
# Imports nothing that is not there in every process; a process may be killed at any moment, so what
# was seen is written at once.
PREAMBLE = """
import os as __os, sys as __sys
def {note}(line, __os=__os, __sys=__sys, module={module!r}, folder={folder!r}):
    seen = __sys.__dict__.setdefault("__noted_lines__", set())
    if (module, line) not in seen:
        seen.add((module, line))
        path = folder + "/" + str(__os.getpid()) + ".lines"
        file = __os.open(path, __os.O_WRONLY | __os.O_CREAT | __os.O_APPEND, 0o600)
        __os.write(file, (module + ":" + str(line) + "\\n").encode())
        __os.close(file)
del __os, __sys
"""

Places = set[tuple[str, int]]


class _Noting(ast.NodeTransformer):
    """Before each statement of a function: note its line."""

    def __init__(self) -> None:
        self.depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if self.depth:
            for name in ("body", "orelse", "finalbody"):
                statements = getattr(node, name, None)
                is_block = isinstance(statements, list) and statements
                if is_block and isinstance(statements[0], ast.stmt):
                    setattr(node, name, [s for one in statements for s in (_note(one), one)])
        return node


def _note(statement: ast.stmt) -> ast.stmt:
    call = ast.Call(ast.Name(NOTE, ast.Load()), [ast.Constant(statement.lineno)], [])
    return ast.copy_location(ast.Expr(call), statement)


def noting(module: str, source: str, folder: Path) -> str:
    """The text of a module that notes its lines in files in `folder`."""
    tree = ast.parse(source)
    preamble = ast.parse(PREAMBLE.format(note=NOTE, module=module, folder=str(folder))).body
    _Noting().visit(tree)
    has_docstring = isinstance(tree.body[0], ast.Expr)
    tree.body[int(has_docstring) : int(has_docstring)] = preamble
    return ast.unparse(ast.fix_missing_locations(tree))


class Recorder:
    """The plugin of pytest that gathers what the copies note, and reports each file's tests."""

    def __init__(self, folder: Path, report: Report) -> None:
        self.folder, self.report = folder, report
        self.tests: list[dict[str, Any]] = []
        self.lines: dict[str, Places] = {}
        self.shared: dict[int, Places] = defaultdict(set)
        self.fixtures: dict[str, list[int]] = {}
        self.passed: dict[str, bool] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Iterator[object]:
        self._taken()
        began, processor_began = time.monotonic(), _processor_seconds()
        try:
            return (yield)
        finally:
            times = {
                "seconds": round(time.monotonic() - began, 3),
                "processor_seconds": round(_processor_seconds() - processor_began, 3),
            }
            self.tests.append({"test": item.nodeid, **times})
            self.lines[item.nodeid] = self._taken()
            self.fixtures[item.nodeid] = [
                id(definition)
                for several in item._fixtureinfo.name2fixturedefs.values()
                for definition in several
            ]
            if nextitem is None or nextitem.path != item.path:
                self._report_file()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        before = self._taken()
        try:
            return (yield)
        finally:
            self.shared[id(fixturedef)] |= self._taken()
            with (self.folder / "before.lines").open("a") as file:  # they are the test's
                file.writelines(f"{module}:{line}\n" for module, line in before)

    def pytest_runtest_logreport(self, report: Any) -> None:
        is_good = self.passed.get(report.nodeid, True) and report.outcome == "passed"
        self.passed[report.nodeid] = is_good

    def _taken(self) -> Places:
        """What was noted since the last call."""
        found: Places = set()
        for path in self.folder.glob("*.lines"):
            for text in path.read_text().splitlines():
                module, _, line = text.rpartition(":")
                if module and line.isdigit():
                    found.add((module, int(line)))
            path.unlink(missing_ok=True)
        sys.__dict__.setdefault("__noted_lines__", set()).clear()
        return found

    def _report_file(self) -> None:
        """Each test with its own lines, and those of the fixtures that it shares with others."""
        for test in self.tests:
            name = test["test"]
            lines: dict[str, list[int]] = defaultdict(list)
            shared = (self.shared[one] for one in self.fixtures[name])
            for module, line in sorted(self.lines[name].union(*shared)):
                lines[module].append(line)
            test |= {"passed": self.passed.get(name, False), "lines": lines}
        self.report({"file": self.tests[0]["test"].partition("::")[0], "tests": self.tests})
        self.tests = []


def _processor_seconds() -> float:
    """Of this process and those that it started and waited for, since it began."""
    return sum(os.times()[:4])


def record(files: Sequence[str], folder: Path, report: Report) -> None:
    """For a fork in which the modules are those of `noting`: run test files.

    Args:
        folder: the one that `noting` was given.
    """
    run_pytest(files, Recorder(folder, report))


def copies(modules: Sequence[str], folder: Path, lines: Path) -> dict[Path, Path]:
    """Write the noting copies into `folder`; gives which file each is to stand for."""
    folder.mkdir(parents=True, exist_ok=True)
    instead = {}
    for module in modules:
        copy = folder / module.replace("/", ".")
        copy.write_text(noting(module, (ROOT / module).read_text(), lines))
        instead[ROOT / module] = copy
    return instead
