"""The first cell of a notebook as it stands, against a package index and a repository of its own.

pip is real, and so are the index, a server on loopback as PEP 503 describes it, and the repository;
what they hold is small, but for the slow test, in which it is Temper with all that it needs.
"""

import functools
import http.server
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from notebooks.build import REPOSITORY, VERSION, install_cell
from tests.faults.notebook_kills import git, make_repository
from tests.forks import outcome_of_forked
from tests.slow import slow

WHEEL = f"temper_train-{VERSION}-py3-none-any.whl"
# As the cell is, but for its last line: that installs what Temper needs, which has its own tests.
CELL = install_cell().removesuffix("colab.install()") + "print(colab.__file__)\nprint(colab.ORIGIN)"
BACKEND = f"""
import zipfile, pathlib
def build_wheel(folder, config_settings=None, metadata_directory=None):
    info = "temper_train-{VERSION}.dist-info"
    files = {{
        "colab/__init__.py": pathlib.Path("colab/__init__.py").read_text(),
        f"{{info}}/METADATA": "Metadata-Version: 2.1\\nName: temper-train\\nVersion: {VERSION}\\n",
        f"{{info}}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        f"{{info}}/RECORD": "colab/__init__.py,,\\n",
    }}
    with zipfile.ZipFile(pathlib.Path(folder) / "{WHEEL}", "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    return "{WHEEL}"
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


@dataclass
class Index:
    """A package index: a folder that is served."""

    folder: Path
    address: str = ""
    requests: list[str] = field(default_factory=list)

    def offer(self, wheel: Path) -> None:
        """Have it, under its project's name."""
        project = self.folder / "simple/temper-train"
        project.mkdir(parents=True)
        shutil.copy2(wheel, project)
        (project / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    served = Index(tmp_path / "index")
    served.folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_request(self, *_: object) -> None:
            served.requests.append(self.path)

        def log_error(self, *_: object) -> None: ...

    handler = functools.partial(Handler, directory=str(served.folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        served.address = f"http://127.0.0.1:{server.server_port}/simple"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield served
        server.shutdown()


@dataclass(frozen=True)
class Machine:
    """Where a notebook is opened: a Python with pip and nothing else."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "environment/bin/python"

    def run_cell(self, index: Index, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
        """Run the cell, with the repository's address leading to the folder `repository`."""
        here = cwd or self.folder
        return subprocess.run(
            [self.python, "-c", CELL],
            cwd=here,
            env=variables_of(index, self.folder),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )


def variables_of(index: Index, folder: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index.address,
        "PIP_RETRIES": "0",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{(folder / 'repository').as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": REPOSITORY,
    }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "pip").symlink_to(Path(sysconfig.get_path("purelib")) / "pip")
    return Machine(tmp_path)


def small_wheel(folder: Path, origin: str) -> Path:
    """What the wheel of a small project is called, and holds."""
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        info = WHEEL.replace("-py3-none-any.whl", ".dist-info")
        metadata = f"Metadata-Version: 2.1\nName: temper-train\nVersion: {VERSION}\n"
        wheel.writestr("colab/__init__.py", f"ORIGIN = {origin!r}\n")
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "colab/__init__.py,,\n")
    return folder / WHEEL


def small_repository(folder: Path) -> None:
    """A bare repository whose tag is an older commit than its main."""
    work, bare = folder / "work", folder / "repository"
    (work / "colab").mkdir(parents=True)
    (work / "backend.py").write_text(BACKEND)
    (work / "pyproject.toml").write_text(PYPROJECT)
    git(work, "init", "--quiet", "--initial-branch", "main")
    author = ("-c", "user.name=Test", "-c", "user.email=test@localhost")
    for origin in ("the tag", "main"):
        (work / "colab/__init__.py").write_text(f"ORIGIN = {origin!r}\n")
        git(work, "add", "--all")
        git(work, *author, "commit", "--quiet", "--message", origin)
        if origin == "the tag":
            git(work, "tag", f"v{VERSION}")
    git(folder, "clone", "--quiet", "--bare", str(work), str(bare))


def test_it_installs_the_version_of_the_index_else_that_of_the_tag(
    machine: Machine, index: Index
) -> None:
    small_repository(machine.folder)
    done = machine.run_cell(index)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1] == "the tag"  # the index has none yet; main is newer
    index.offer(small_wheel(machine.folder, "the index"))
    (packages,) = machine.folder.glob("environment/lib/python*/site-packages")
    (record,) = packages.glob("temper_train-*/RECORD")
    record.unlink()  # as if it had been broken off half-way
    done = machine.run_cell(index)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1] == "the index"
    index.requests.clear()
    assert machine.run_cell(index).stdout == done.stdout
    assert index.requests == []  # it is there


def test_inside_a_clone_it_takes_the_clone(machine: Machine, index: Index) -> None:
    clone = machine.folder / "clone"
    (clone / "notebooks").mkdir(parents=True)
    (clone / "colab").mkdir()
    (clone / "colab/bootstrap.py").touch()
    (clone / "colab/__init__.py").write_text("ORIGIN = 'the clone'\n")
    done = machine.run_cell(index, cwd=clone / "notebooks")
    assert done.stdout == f"{clone / 'colab/__init__.py'}\nthe clone\n"
    assert (done.stderr, index.requests) == ("", [])


IN_A_NOTEBOOK = """
import importlib.metadata, sys
from IPython.core.interactiveshell import InteractiveShell
importlib.metadata.distributions = lambda **_: []
shell = InteractiveShell.instance()
result = shell.run_cell(sys.argv[1])
print("stopped:", type(result.error_in_exec).__name__)
"""


def test_where_nothing_can_be_installed_one_sentence_has_what_to_do(
    tmp_path: Path, index: Index
) -> None:
    """As a notebook shows it; there is neither the version in the index nor a repository."""
    done = outcome_of_forked(
        [sys.executable, "-c", IN_A_NOTEBOOK, install_cell()],
        cwd=tmp_path,
        env={**os.environ, **variables_of(index, tmp_path), "IPYTHONDIR": str(tmp_path)},
        text=True,
    )
    assert done.stderr == ""
    shown, stopped = done.stdout.splitlines()
    assert shown.startswith(f"Temper {VERSION} could not be installed, neither from the package")
    assert shown.endswith("or open this notebook inside a clone of Temper")
    assert f"(it is {sys.version.split()[0]})" in shown
    assert stopped == "stopped: NotInstalled"


@slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("source", ["index", "tag"])
def test_temper_itself_is_installed_and_trains(machine: Machine, index: Index, source: str) -> None:
    """The real wheel or the real repository, with everything that Temper needs, in an empty
    environment outside the clone; what it needs comes from where this machine's pip looks."""
    environment = machine.folder / "environment"
    repository = make_repository(machine.folder / "repository")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    variables = {**os.environ, **variables_of(index, machine.folder), "OMP_NUM_THREADS": "1"}
    for name in ("PIP_INDEX_URL", "PIP_CONFIG_FILE"):
        del variables[name]
    if source == "index":
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", "."]
        subprocess.run([*command, str(repository)], cwd=machine.folder, check=True)
        index.offer(machine.folder / WHEEL)
        variables["PIP_EXTRA_INDEX_URL"] = index.address
        shutil.rmtree(repository)
    here = machine.folder / "here"
    here.mkdir()
    for what in (
        [machine.python, "-c", install_cell()],
        [environment / "bin/temper", "train", "--preset", "quick", "--max-steps", "4"],
        [machine.python, "-c", "import temper; print(temper.train, temper.__file__)"],
    ):
        done = subprocess.run(
            what, cwd=here, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert str(environment) in done.stdout
    assert len(list(here.glob("runs/*/final/model.safetensors"))) == 1
    assert (source == "index") == any(path.endswith(WHEEL) for path in index.requests)
