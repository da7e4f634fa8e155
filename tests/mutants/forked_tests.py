"""Tests in forks of a process that has imported what takes long, and collected the tests.

A defect inside a function is put into the function that is there already; any other needs a fork
from before the project was imported. Processes that a test starts read the mutated file.
"""

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = [
    *["numpy", "torch", "torch.optim.lr_scheduler", "torch._dynamo", "torch.distributed"],
    *["transformers", "transformers.trainer", "transformers.models.llama.modeling_llama"],
    *["tokenizers", "safetensors.torch", "accelerate", "peft", "trl", "datasets"],
    *["pyarrow.parquet", "h5py", "pydantic", "yaml", "psutil", "blake3", "zstandard"],
    *["dimod", "dwave.samplers", "fsspec", "httpx", "rich.table", "tqdm", "pytest"],
]
OPTIONS = ["-q", "-s", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=0"]
OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # what is imported before the fork

Report = Callable[[dict[str, Any]], None]
Functions = dict[tuple[str, int], CodeType]


def warm_up() -> None:
    """Import what takes long; a package that is not installed is left out."""
    for name in HEAVY:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"without {name}: {error}", file=sys.stderr)
    ours = sorted(name for name in sys.modules if name.startswith("infrastructure"))
    assert not ours, f"imported before the fork: {ours}"


def run_pytest(arguments: Sequence[str], plugin: Any) -> int:
    """Run pytest here, in the repository's root; its exit status."""
    os.chdir(ROOT)
    sys.argv = ["pytest", *arguments]
    return int(pytest.main([*OPTIONS, *arguments], plugins=[plugin]))


class Collected:
    """A plugin of pytest: `work` is given what was collected, and forks to run some of it."""

    def __init__(self, work: Callable[["Collected"], None]) -> None:
        self.work = work
        self.items: dict[str, Any] = {}

    def pytest_runtestloop(self, session: Any) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        gc.collect()
        gc.freeze()  # what lies here is not looked at again, and so not copied, in each fork
        self.work(self)
        return True

    def run(self, tests: Sequence[str], report: Report, source: str, path: Path) -> None:
        """For a fork: put a mutated module's functions in place, and run to the first failure."""
        gc.unfreeze()
        replace_functions(path, source)
        sys.dont_write_bytecode = True
        first = ToFirstFailure(tests, report)
        items = [self.items[test] for test in tests if test in self.items]
        if items:
            items[0].config.pluginmanager.register(first)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        report({"status": 0})


def outermost_functions(source: str, path: Path) -> tuple[Functions, CodeType]:
    """The code of each function that lies in no other one, and that of the whole module."""
    module = compile(source, str(path), "exec", dont_inherit=True)
    found: Functions = {}

    def look(code: CodeType) -> None:
        for constant in code.co_consts:
            if not isinstance(constant, CodeType):
                continue
            if constant.co_flags & 0x2:  # CO_NEWLOCALS: a function, and no body of a class
                found[constant.co_qualname, constant.co_firstlineno] = constant
            else:
                look(constant)

    look(module)
    return found, module


def changed_functions(path: Path, before: str, after: str) -> list[tuple[str, int]] | None:
    """The functions that a defect changes; None: it changes what runs at import, or their form."""
    (old, _), (new, _) = outermost_functions(before, path), outermost_functions(after, path)
    if list(old) != list(new):
        return None
    changed = [key for key in old if old[key] != new[key]]
    if any(key[0].endswith("comp>") or key[0].endswith("<genexpr>") for key in changed):
        return None
    same_form = all(old[key].co_freevars == new[key].co_freevars for key in changed)
    return changed if changed and same_form and len(changed) == 1 else None


def replace_functions(path: Path, source: str) -> None:
    """Give the living functions of a file the code that the source has."""
    new, _ = outermost_functions(source, path)
    nested = {(c.co_qualname, c.co_firstlineno): c for code in new.values() for c in _within(code)}
    for function in gc.get_objects():
        if type(function) is not FunctionType:  # isinstance would wake what is made when asked for
            continue
        if function.__code__.co_filename != str(path):
            continue
        key = function.__code__.co_qualname, function.__code__.co_firstlineno
        code = new.get(key) or nested.get(key)
        if code is not None and code.co_freevars == function.__code__.co_freevars:
            function.__code__ = code


def _within(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _within(constant)


class ToFirstFailure:
    """Runs the given tests in the given order, reports each, and ends the process at a failure."""

    def __init__(self, tests: Sequence[str], report: Report) -> None:
        self.tests, self.report = list(tests), report

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        found = {item.nodeid: item for item in items}
        items[:] = [found[name] for name in self.tests if name in found]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._fail(report.nodeid, report)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.report({"test": nodeid})

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._fail(report.nodeid, report)

    def _fail(self, test: str, report: Any) -> None:
        crash = getattr(report.longrepr, "reprcrash", None)
        words = crash.message if crash is not None else str(report.longrepr)[-300:]
        self.report({"failed": test, "why": words.partition("\n")[0][:300]})
        os._exit(1)


def run_to_first_failure(tests: Sequence[str], report: Report) -> None:
    """For a fork in which the project is not imported yet: the tests, in this order."""
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    report({"status": run_pytest(files, ToFirstFailure(tests, report))})
