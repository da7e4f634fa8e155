"""Where a process runs: by what the machine has, or as it is told."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from colab import runtime
from colab.runtime import Platform, has_browser, platform

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def an_ordinary_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No notebook, no lender; the file that Colab's machines have would be the returned one."""
    for variable in (runtime.VARIABLE, runtime.KAGGLE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(runtime, "COLAB_FILE", tmp_path / "hostname")
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    return tmp_path / "hostname"


def be_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


def test_a_plain_process_is_a_terminal() -> None:
    assert platform() is Platform.TERMINAL
    assert not has_browser()


def test_a_kernel_is_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    be_a_kernel(monkeypatch)
    assert platform() is Platform.NOTEBOOK
    assert not has_browser()


def test_colab_is_known_by_its_file_and_only_its_kernel_has_a_page(
    monkeypatch: pytest.MonkeyPatch, an_ordinary_machine: Path
) -> None:
    an_ordinary_machine.write_text("m-s-1a2b3c")
    assert platform() is Platform.COLAB
    assert not has_browser()
    be_a_kernel(monkeypatch)
    assert has_browser()


def test_kaggle_is_not_colab_although_it_sets_colab_s_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    be_a_kernel(monkeypatch)
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    monkeypatch.setenv(runtime.KAGGLE_VARIABLE, "Interactive")
    assert platform() is Platform.KAGGLE


@pytest.mark.parametrize("variable", [*map(str, Platform), " Colab "])
def test_the_variable_knows_better(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(runtime.VARIABLE, variable)
    assert platform() == variable.strip().lower()


def test_a_wrong_variable_names_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(runtime.VARIABLE, "collab")
    with pytest.raises(ValueError, match=r"what=TEMPER_PLATFORM, name=collab,.*meant=colab"):
        platform()


def test_the_configuration_leaves_the_notebook_s_variables_alone() -> None:
    """Every command reads the environment, and refuses what it does not know there."""
    code = "from infrastructure.config.sources.load import load_config; load_config()"
    variables = {"TEMPER_PLATFORM": "colab", "TEMPER_SESSION_HOURS": "24"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=variables, check=True)
