"""`colab.install()` for real but small: a real environment, real pip, no network.

The tests share one environment, which each puts into the state that it needs, and in which it uses
one installer; the slow tests are the same with the other one.
"""

import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from colab.bootstrap import loaded_of
from infrastructure.core.messages import CATALOGUE, CODES, WORDS
from tests.deployment.small_project import (
    COPIED,
    NEEDS,
    ROOT,
    Outcome,
    make_wheel,
    offline,
)
from tests.slow import slow

NEEDED_BY_BOTH = [name for name in COPIED if name.endswith(".py")]
COPIED_HERE = [
    *NEEDED_BY_BOTH,
    *(f"colab/{name}.py" for name in ("__init__", "bootstrap", "needed_packages", "runtime")),
    *(
        f"infrastructure/core/{name}.py"
        for name in (
            "cache_folder",
            "errors",
            "exit_codes",
            "features",
            "importing",
            "json_text",
            "lazy_exports",
            "lookup",
            "messages",
            "notebook",
            "optional",
            "transformers_imports",
        )
    ),
]
PYPROJECT = """
[project]
name = "temper"
dependencies = ["packaging>=24.1", "leaf>=1.0", "numpy>=2"]
[tool.setuptools.dynamic.optional-dependencies]
tested = { file = ["tested.txt"] }
colab = { file = ["colab.txt"] }
unsloth = { file = ["unsloth.txt"] }
"""
FILES = {
    "pyproject.toml": PYPROJECT,
    "tested.txt": "leaf==1.5\nnumpy==2.4\nextra==1.0\n",
    "colab.txt": "extra==0.9\nnumpy==2.1\n",
    "unsloth.txt": "unsloth==1.0\n",
}
WHEELS = ["leaf 0.9", "leaf 1.5", "leaf 1.6", "numpy 1.9", "numpy 2.1", "numpy 2.4"]
WHEELS += ["extra 0.9", "extra 1.0", "extra 2.0", "unsloth 1.0"]
INSTALL = "import colab; colab.install()"
TWICE = """
import colab
try:
    colab.install()
finally:
    try:
        colab.install()
    except Exception as error:
        print("again:", error)
"""


@dataclass(frozen=True)
class Notebook:
    """An environment in `folder`/venv that imports the project in `folder`/project."""

    folder: Path
    installer: str

    @property
    def marker(self) -> Path:
        return self.folder / ".cache/temper/installing"

    @property
    def packages(self) -> Path:
        (found,) = (self.folder / "venv").glob("lib/python*/site-packages")
        return found

    def python(self, code: str, wheels: str = "wheels", platform: str = "notebook") -> Outcome:
        """Run `code` in the environment, whose pip sees the folder `wheels` and nothing else."""
        done = subprocess.run(
            [self.folder / "venv/bin/python", "-c", code],
            cwd=self.folder,
            env={
                "HOME": str(self.folder),
                "PYTHONPATH": str(self.folder / "project"),
                "TEMPER_PLATFORM": platform,
                WORDS: CODES,
                "UV_SYSTEM_PYTHON": "true",  # as Colab has it
                **offline(self.folder / wheels, self.installer),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def has(self, **wanted: str | None) -> None:
        """Put packages into a state, as pip would leave it; None: not there."""
        for name, version in wanted.items():
            for path in self.packages.glob(f"{name}*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if version is not None:
                wheel = self.folder / "wheels" / f"{name}-{version}-py3-none-any.whl"
                with zipfile.ZipFile(wheel) as file:
                    file.extractall(self.packages)

    def versions(self) -> dict[str, str]:
        found = importlib.metadata.distributions(path=[str(self.packages)])
        return {one.metadata["Name"]: one.version for one in found}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a name with the project, wheels and a new environment."""
    return functools.cache(lambda name: prepare(tmp_path_factory.mktemp(name)))


def prepare(folder: Path) -> Path:
    for name in COPIED_HERE:
        target = folder / "project" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    for name, text in FILES.items():
        (folder / "project" / name).write_text(text)
    shutil.copytree(CATALOGUE, folder / "project" / CATALOGUE.relative_to(ROOT))
    (folder / "wheels").mkdir()
    for wheel in WHEELS:
        make_wheel(folder / "wheels", *wheel.split())
    wheel_of_packaging(folder / "wheels")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).glob("pip*"):  # compiled already
        (packages / path.name).symlink_to(path)
    return folder


@pytest.fixture
def notebook(folders: Callable[[str], Path], request: pytest.FixtureRequest) -> Notebook:
    """For an installer: the environment of the quick tests, or that of the slow ones with it."""
    speed, installer = request.param
    return Notebook(folders(installer if speed == "slow" else "quick"), installer)


def first_with(*installers: str) -> pytest.MarkDecorator:
    """A quick test with these installers, and a slow one with the other."""
    cases = [pytest.param(("quick", one), id=one, marks=NEEDS[one]) for one in installers]
    cases += [
        pytest.param(("slow", other), id=other, marks=[slow, *NEEDS[other]])
        for other in NEEDS.keys() - set(installers)
    ]
    return pytest.mark.parametrize("notebook", cases, indirect=True)


def wheel_of_packaging(folder: Path) -> None:
    """The real one, from this environment's own files."""
    distribution = importlib.metadata.distribution("packaging")
    name = f"packaging-{distribution.version}-py3-none-any.whl"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        for file in distribution.files or []:
            if file.suffix != ".pyc" and ".." not in file.parts:
                wheel.write(str(file.locate()), str(file))


@first_with("pip")
def test_a_bare_environment_gets_the_tested_versions(notebook: Notebook) -> None:
    done = notebook.python(INSTALL)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "notebook.everything_installed()"
    found = notebook.versions()
    assert (found["leaf"], found["numpy"], found["extra"]) == ("1.5", "2.4", "1.0")
    assert "unsloth" not in found
    assert not notebook.marker.exists()


@pytest.fixture
def ready(notebook: Notebook) -> Notebook:
    """Where Temper was installed before."""
    if "packaging" not in notebook.versions():
        assert notebook.python(INSTALL).code == 0
    return notebook


@first_with("uv")
def test_the_next_time_nothing_is_installed(ready: Notebook) -> None:
    ready.has(leaf="1.6", numpy="2.1", extra="2.0")
    done = ready.python(INSTALL, wheels="nowhere")
    assert (done.code, done.out) == (0, "notebook.everything_installed()\n")
    assert ready.versions()["leaf"] == "1.6"


@first_with("uv")
def test_on_colab_what_is_there_stays_and_what_lacks_has_colab_s_version(
    ready: Notebook,
) -> None:
    ready.has(leaf="1.6", numpy="2.1", extra=None)
    assert ready.python(INSTALL, platform="colab").code == 0
    found = ready.versions()
    assert (found["leaf"], found["numpy"], found["extra"]) == ("1.6", "2.1", "0.9")


@first_with("uv")
def test_a_failed_installer_fails_the_cell_with_its_words(ready: Notebook) -> None:
    ready.has(leaf=None, numpy="2.1", extra="1.0")
    done = ready.python(INSTALL, wheels="nowhere")
    assert done.code == 1
    what = {"pip": "pip install", "uv": "uv pip install"}
    assert what[ready.installer] in done.err
    why = {"pip": "No matching distribution found for leaf==1.5", "uv": "you require leaf==1.5"}
    assert why[ready.installer] in done.err
    assert ready.python(INSTALL).code == 0


@first_with("uv")
def test_a_loaded_package_that_was_replaced_needs_a_restart(ready: Notebook) -> None:
    ready.has(leaf="0.9", numpy="2.1", extra="1.0")
    done = ready.python(f"import leaf{TWICE}")
    message = "notebook.packages_replaced_after_loading(packages=['leaf'])"
    assert f"again: {message}" in done.out  # the same kernel is no better the second time
    assert f"RestartNeededError: {message}" in done.err
    assert ready.versions()["leaf"] == "1.5"
    assert ready.python(f"import leaf; {INSTALL}").code == 0


def test_a_new_setuptools_needs_no_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A .pth file of it loads a small module into every Python; it is not loaded itself."""
    owners = {"_distutils_hack": ["setuptools"], "setuptools": ["setuptools"], "leaf": ["leaf"]}
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: owners)
    monkeypatch.setattr(sys, "modules", {"_distutils_hack": sys, "leaf.stem": sys})
    assert loaded_of({"setuptools", "leaf"}) == {"leaf"}
    monkeypatch.setattr(sys, "modules", {"setuptools.dist": sys})
    assert loaded_of({"setuptools"}) == {"setuptools"}


@first_with("uv")
def test_a_package_that_was_replaced_unloaded_needs_no_restart(ready: Notebook) -> None:
    ready.has(leaf="0.9", numpy="2.1", extra="1.0")
    assert ready.python(INSTALL).code == 0


@first_with("pip")
def test_numpy_is_not_replaced_but_reported(ready: Notebook) -> None:
    ready.has(leaf="1.5", numpy="1.9", extra="1.0")
    done = ready.python(INSTALL)
    assert "notebook.package_too_old(name=numpy, version=1.9, needed=numpy>=2)" in done.err
    assert ready.versions()["numpy"] == "1.9"
    ready.has(numpy="2.1")


@first_with("pip", "uv")
def test_an_installation_that_was_killed_is_mended(ready: Notebook) -> None:
    """What pip had not finished has no RECORD, what uv had not has not all files; by its metadata
    alone it would count as there."""
    ready.has(leaf="1.5", numpy="2.1", extra="1.0")
    ready.marker.touch()
    if ready.installer == "pip":
        (ready.packages / "leaf-1.5.dist-info/RECORD").unlink()
    else:
        ready.has(leaf="1.5")  # after the marker
    (ready.packages / "leaf.py").unlink()
    done = ready.python(f"{INSTALL}; import leaf")
    assert (done.code, done.err) == (0, "")
    assert "half_installed_removed(name=leaf-1.5.dist-info)" in done.out
    assert not ready.marker.exists()


@first_with("uv")
def test_unsloth_only_where_it_is_requested(ready: Notebook) -> None:
    ready.has(leaf="1.5", numpy="2.1", extra="1.0")
    assert ready.python("import colab; colab.install(with_unsloth=True)").code == 0
    assert ready.versions()["unsloth"] == "1.0"
    ready.has(unsloth=None)


ON_GPU = """
import colab
from colab import bootstrap
bootstrap.nvidia_driver_present = lambda: {there}
colab.install(with_unsloth="on_gpu")
"""


@first_with("uv")
def test_a_gpu_gets_unsloth_and_does_without_where_that_fails(ready: Notebook) -> None:
    ready.has(leaf="1.5", numpy="2.1", extra="1.0")
    assert ready.python(ON_GPU.format(there=False)).code == 0
    assert "unsloth" not in ready.versions()
    done = ready.python(ON_GPU.format(there=True), wheels="nowhere")
    assert (done.code, done.err) == (0, "")
    assert "notebook.unsloth_not_installed(error=" in done.out
    assert ready.python(ON_GPU.format(there=True)).code == 0
    assert ready.versions()["unsloth"] == "1.0"
    ready.has(unsloth=None)


@first_with("uv")
def test_an_old_package_of_which_files_are_missing_is_not_the_installer_s(
    ready: Notebook,
) -> None:
    """An image may leave out what nobody runs; its packages fit each other as they are."""
    ready.has(leaf="1.5", numpy="2.1", extra="1.0")
    (ready.packages / "numpy.py").unlink()
    os.utime(ready.packages / "numpy-2.1.dist-info", (0, 0))
    ready.marker.touch()
    done = ready.python(INSTALL)
    assert "half_installed" not in done.out
    assert ready.versions()["numpy"] == "2.1"


@first_with("uv")
def test_the_installer_s_words_are_kept(ready: Notebook) -> None:
    ready.has(leaf=None)
    assert ready.python(INSTALL).code == 0
    log = (ready.folder / ".cache/temper/install.log").read_text()
    assert {"pip": "Successfully installed", "uv": "Installed 1 package"}[ready.installer] in log
