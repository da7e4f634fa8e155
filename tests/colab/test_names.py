"""`import colab` is light, and what it offers is there, the second time too."""

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import colab

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", colab.__all__)
def test_a_public_name_is_offered(name: str) -> None:
    assert getattr(colab, name).__name__ == name


def test_no_public_name_is_also_a_module_s() -> None:
    """Once the module is loaded, the package's attribute is the module and no longer the name."""
    modules = {module.name for module in pkgutil.iter_modules(colab.__path__)}
    assert modules & {*colab.__all__} == set()


def test_installing_needs_nothing_but_python() -> None:
    """With -S no installed package can be imported, and no `packaging` either."""
    probe = "import colab, sys; colab.install; colab.platform(); print('psutil' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-W", "error", "-c", probe],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize("text", ["", "raise RuntimeError('mine')"])
def test_another_package_of_the_name_is_one_sentence(tmp_path: Path, text: str) -> None:
    """A notebook's folder is looked at first: over a thousand projects have an `infrastructure`."""
    mine = tmp_path / "infrastructure/__init__.py"
    mine.parent.mkdir()
    mine.write_text(text)
    for what in (("-c", "import colab"), ("-c", "import temper")):
        lines = python_in(tmp_path, *what)
        assert f"is hidden by another of that name, {mine}, which" in lines[-1]
        assert lines[-1].startswith("ImportError: Temper's package `infrastructure` is hidden")
    script = tmp_path / "temper"  # as pip writes it
    script.write_text("import sys\nfrom temper.__main__ import main\nsys.exit(main())\n")
    for command in (("-m", "temper", "--version"), (str(script), "--version")):
        (line,) = python_in(tmp_path, *command)
        assert line.startswith("temper: Temper's package `infrastructure` is hidden by another")


def python_in(folder: Path, *arguments: str) -> list[str]:
    """The lines of standard error of a Python that looks into `folder` first."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    return done.stderr.splitlines()


def test_the_package_is_a_command(tmp_path: Path) -> None:
    """In a folder of files that are called like modules, too."""
    (tmp_path / "torch.py").write_text("raise RuntimeError('mine')")
    done = subprocess.run(
        [sys.executable, "-m", "temper", "--version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout[:7], done.stderr) == (0, "temper ", "")
