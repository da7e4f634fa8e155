"""Every notebook is run as "Run all" runs it, small, twice, with the assertions it carries.

Long, since each is a real kernel and a real training; that is what the notebooks promise.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import server_name
from tests.notebooks.kernels import CellError, kernels_are_forks, notebook_in_kernel
from tests.notebooks.notebook_files import NOTEBOOKS, copy_into, variables, variables_of
from tests.slow import slow, slow_but

CELL_SECONDS = 600  # a guard against cells that hang; busy machines take minutes
# What a kernel executes that is a fork, so that the training that it starts to go on alone is one.
DETACHED_FORKS = """
import tests.forks, tests.deployment.runs
tests.forks.share_server({name!r})
tests.deployment.runs.detached_trainings_are_forks().start()
"""
EACH = pytest.mark.parametrize("path", NOTEBOOKS[1:], ids=lambda path: path.stem)
# Of what these do, other tests run the long parts: data of one's own from a form, quantum steps,
# stacks, a search, measuring and exporting.
LONG = [path for path in NOTEBOOKS if path.stem[:2] in ("01", "03", "04", "05", "07")]
QUICK = [path for path in NOTEBOOKS[1:] if path not in LONG]


def run_all(notebook: Path, environment: dict[str, str]) -> None:
    """Run a notebook and its assertions with nbmake, which fails at the first cell that fails."""
    command = [sys.executable, "-m", "pytest", "--nbmake", f"--nbmake-timeout={CELL_SECONDS}"]
    command += ["-q", "-p", "no:cacheprovider", "--rootdir", str(notebook.parent), notebook.name]
    done = subprocess.run(
        command,
        cwd=notebook.parent,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is prepared of the sample data, which several notebooks train on."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("path", slow_but(QUICK, NOTEBOOKS[1:]), ids=lambda path: path.stem)
def test_each_cell_does_what_it_describes(path: Path, cache: Path, tmp_path: Path) -> None:
    """The same in a kernel that has PyTorch already; nbmake's own are slow."""
    notebook = copy_into(tmp_path / "notebook", path)
    environment = variables_of(path, tmp_path) | {"TEMPER_CACHE__DIRECTORY": str(cache)}
    if "TEMPER_TRAINING__MAX_STEPS" in environment:  # nobody kills it
        environment["TEMPER_TRAINING__MAX_STEPS"] = "16"
    run_in_fork(notebook, environment)


def test_a_cell_that_fails_and_an_assertion_that_fails_are_reported(tmp_path: Path) -> None:
    """Or all of this would show nothing."""
    folder = copy_into(tmp_path / "notebook", NOTEBOOKS[0]).parent
    cell = {"cell_type": "code", "metadata": {}, "source": "a = 1"}
    failing = {**cell, "source": "a = 1 / 0"}
    wrong = {**cell, "metadata": {"nbmake": {"post_cell_execute": ["b = 2", "assert a == b"]}}}
    for cells, message in (
        ([cell, failing], "ZeroDivisionError"),
        ([wrong, cell], "AssertionError"),
    ):
        path = folder / "failing.ipynb"
        path.write_text(json.dumps({"cells": cells}))
        fails = pytest.raises(CellError, match=message)
        with kernels_are_forks(), notebook_in_kernel(path, {}) as kernel, fails:
            kernel.run_with_assertions()


def run_in_fork(notebook: Path, environment: dict[str, str]) -> None:
    """Run a notebook and its assertions in a kernel that has PyTorch already."""
    with kernels_are_forks(), notebook_in_kernel(notebook, environment) as kernel:
        kernel.run(DETACHED_FORKS.format(name=server_name()))
        kernel.run_with_assertions()


@slow
@EACH
def test_run_all(path: Path, tmp_path: Path) -> None:
    run_all(copy_into(tmp_path / "notebook", path), variables_of(path, tmp_path))


@pytest.mark.parametrize("path", slow_but(NOTEBOOKS[:1], NOTEBOOKS), ids=lambda path: path.stem)
def test_run_all_and_run_all_again(path: Path, tmp_path: Path) -> None:
    notebook = copy_into(tmp_path / "notebook", path)
    environment = variables_of(path, tmp_path)
    run_in_fork(notebook, environment)
    trained = weights_in(tmp_path)
    assert trained
    run_in_fork(notebook, environment)
    again = weights_in(tmp_path)  # what was measured may differ, and then it is another training
    assert trained.items() <= again.items(), "a finished training was trained again"


def weights_in(folder: Path) -> dict[Path, int]:
    """The trained models, and when they were written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("final/*.safetensors")}


@slow
def test_a_cell_whose_assertion_fails_fails_the_notebook(tmp_path: Path) -> None:
    """Or all of this would show nothing."""
    text = NOTEBOOKS[0].read_text(encoding="utf-8")
    assert "assert colab.install" in text
    notebook = tmp_path / "broken.ipynb"
    notebook.write_text(text.replace("assert colab.install", "assert not colab.install"))
    with pytest.raises(AssertionError, match="Post cell execution failed"):
        run_all(notebook, variables(tmp_path))
