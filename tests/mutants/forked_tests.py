"""Tests in a fork of this process, with the heavy packages imported already.

No module of the project may be imported before the fork: each imports the text that it is given.
"""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HEAVY = [
    *["numpy", "torch", "torch.optim.lr_scheduler", "torch._dynamo", "torch.distributed"],
    *["transformers", "transformers.trainer", "transformers.models.llama.modeling_llama"],
    *["tokenizers", "safetensors.torch", "accelerate", "peft", "trl", "datasets"],
    *["pyarrow.parquet", "h5py", "pydantic_settings", "yaml", "psutil", "blake3", "zstandard"],
    *["dimod", "dwave.samplers", "fsspec", "httpx", "rich.table", "tqdm", "pytest"],
]
OPTIONS = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=0"]
OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # what is imported before the fork

Report = Callable[[dict[str, Any]], None]


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
    import pytest

    os.chdir(ROOT)
    sys.argv = ["pytest", *arguments]
    return int(pytest.main([*OPTIONS, *arguments], plugins=[plugin]))


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
    """For a fork: the tests, in this order; reports how it ended."""
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    status = run_pytest(files, ToFirstFailure(tests, report))
    report({"status": status})
