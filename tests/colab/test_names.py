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


def test_another_package_of_the_name_is_one_sentence(tmp_path: Path) -> None:
    """A notebook's folder is looked at first: over a thousand projects have an `infrastructure`."""
    (tmp_path / "infrastructure/core").mkdir(parents=True)
    for folder in ("infrastructure", "infrastructure/core"):
        (tmp_path / folder / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", "import colab"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "is hidden by another of that name" in done.stderr.splitlines()[-1]
