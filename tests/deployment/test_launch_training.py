"""The one command, for real but small: bash, a real virtual environment, real pip, no network.

The tests of `project` share one installation and leave it whole. The quick ones share one that uv
has made, which is five times as fast as pip; one of them then uses pip in it. The slow ones are the
same with the other installer alone.
"""

import dataclasses
import functools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from infrastructure.core.nvidia_driver import nvidia_driver_present
from infrastructure.deployment.environment import RECORD_NAME
from tests.deployment.small_project import (
    NEEDS,
    ROOT,
    UV,
    SmallProject,
    make_small_project,
    make_wheel,
)
from tests.foreign_folder import foreign_folder
from tests.slow import slow, slow_but

SCRIPTS = [
    "launch_training.sh",
    "infrastructure/deployment/launch_training.sh",
    "infrastructure/deployment/environment.sh",
    ".ci/run",
]
ENVIRONMENT = "infrastructure/deployment/environment.sh"
LAUNCH = "launch_training.sh"

FASTEST = "uv" if UV else "pip"

on_a_machine_without_a_gpu = pytest.mark.skipif(
    nvidia_driver_present(), reason="here the launcher chooses the CUDA build, as it should"
)


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], SmallProject]:
    """The project of a name, whose environment was made by the first launch with an installer."""

    @functools.cache
    def launch(name: str, installer: str) -> SmallProject:
        project = make_small_project(tmp_path_factory.mktemp(name), installer)
        first = project.run(LAUNCH, "--epochs", "2", "data with space.jsonl")
        (project.root / "first.json").write_text(json.dumps([first.code, first.out, first.err]))
        return project

    return launch


@pytest.fixture
def project(
    launched: Callable[[str, str], SmallProject], request: pytest.FixtureRequest
) -> SmallProject:
    """For an installer: the project of the quick tests, or its own."""
    speed, installer = request.param
    if speed == "slow":
        return launched(installer, installer)
    return dataclasses.replace(launched("quick", FASTEST), installer=installer)


def first_with(installer: str) -> pytest.MarkDecorator:
    """A quick test with this installer, and a slow one with the other."""
    other = {"pip": "uv", "uv": "pip"}[installer]
    cases = [
        pytest.param(("quick", installer), id=installer, marks=NEEDS[installer]),
        pytest.param(("slow", other), id=other, marks=[slow, *NEEDS[other]]),
    ]
    return pytest.mark.parametrize("project", cases, indirect=True)


def first_launch(project: SmallProject) -> tuple[int, str, str]:
    code, out, err = json.loads((project.root / "first.json").read_text())
    return code, out, err


def record(project: SmallProject) -> dict[str, str]:
    text = (project.root / ".venv" / RECORD_NAME).read_text()
    return dict(json.loads(text))


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_valid_and_executable(script: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)
    assert os.access(ROOT / script, os.X_OK)


@on_a_machine_without_a_gpu
@first_with(FASTEST)
def test_the_first_launch_installs_and_reports_that(project: SmallProject) -> None:
    _, _, err = first_launch(project)
    for step in (
        "deployment.virtual_environment(python=",
        "deployment.pytorch_cpu_build(",
        "requirements.txt",
        "deployment.temper_editable()",
    ):
        assert step in err
    assert "unsloth" not in err
    assert "the doctor was here" in err
    found = shutil.which("temper", path=project.variables({})["PATH"])
    assert (".venv/bin/temper" in err) == (found is None)  # how it is typed
    assert (project.packages / "torch-2.13.0+cpu.dist-info/RECORD").exists()
    assert (project.packages / "leaf-1.0.dist-info/RECORD").exists()
    assert not (project.packages / "unsloth-1.0.dist-info").exists()


@first_with(FASTEST)
def test_temper_gets_the_flags_and_the_folder_and_its_exit_code_is_the_launcher_s(
    project: SmallProject,
) -> None:
    code, out, _ = first_launch(project)
    assert code == 7
    assert json.loads(out) == {
        "arguments": ["train", "--epochs", "2", "data with space.jsonl"],
        "folder": str(project.root.parent),
    }


@first_with(FASTEST)
def test_the_second_launch_only_trains(project: SmallProject, tmp_path: Path) -> None:
    before = (project.root / ".venv" / RECORD_NAME).stat().st_mtime_ns
    again = project.run(LAUNCH, cwd=tmp_path)
    assert (again.code, again.err) == (7, "")
    assert json.loads(again.out) == {"arguments": ["train"], "folder": str(tmp_path)}
    assert (project.root / ".venv" / RECORD_NAME).stat().st_mtime_ns == before


@first_with(FASTEST)
def test_from_a_folder_whose_files_are_named_like_modules(
    project: SmallProject, tmp_path: Path
) -> None:
    folder = foreign_folder(tmp_path / "foreign")
    done = project.run(LAUNCH, cwd=folder)
    assert (done.code, done.err) == (7, "")
    assert json.loads(done.out)["folder"] == str(folder)


@first_with(FASTEST)
def test_through_a_relative_path(project: SmallProject) -> None:
    done = subprocess.run(
        ["bash", f"{project.root.name}/{LAUNCH}"],
        cwd=project.root.parent,
        env=project.variables({}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (7, "")


@first_with(FASTEST)
def test_unsloth_is_requested_and_stays_an_option_of_the_launcher(project: SmallProject) -> None:
    done = project.run(LAUNCH, "--with-unsloth", "--epochs", "1")
    assert "deployment.part_without_dependencies(files=requirements-unsloth.txt)" in done.err
    assert "requirements.txt …" not in done.err
    assert json.loads(done.out)["arguments"] == ["train", "--epochs", "1"]
    assert (project.packages / "unsloth-1.0.dist-info").exists()


@first_with(FASTEST)
def test_a_changed_file_installs_that_part_alone(project: SmallProject) -> None:
    """Triton, which packages bring, does not stay where there is no GPU."""
    for wheel in ("leaf 1.1", "triton 1.0"):
        make_wheel(project.wheels, *wheel.split())
    requirements = project.root / "requirements.txt"
    text = requirements.read_text().replace("leaf==1.0", "leaf==1.1")
    requirements.write_text(text + "triton==1.0\n")
    assert project.run(ENVIRONMENT, "--check").code == 1
    done = project.run(ENVIRONMENT)
    assert "requirements.txt …" in done.err
    assert "PyTorch" not in done.err
    assert "deployment.virtual_environment" not in done.err
    assert (project.packages / "leaf-1.1.dist-info").exists()
    has_gpu = nvidia_driver_present()
    assert ("deployment.removing_triton()" in done.err) != has_gpu
    assert bool(list(project.packages.glob("triton*"))) == has_gpu
    assert project.run(ENVIRONMENT, "--check").code == 0


@first_with(FASTEST)
@pytest.mark.parametrize("has_record", slow_but([True], [True, False]))
def test_what_a_killed_installer_left_is_installed_again(
    project: SmallProject, has_record: bool
) -> None:
    """uv writes the RECORD with the other files, pip writes it last."""
    (leaf,) = project.packages.glob("leaf-*.dist-info")
    if not has_record:
        (leaf / "RECORD").unlink()
    (project.packages / "leaf.py").unlink()
    (project.packages / "~eaf").mkdir()
    stopped = {name: value for name, value in record(project).items() if name != "base"}
    (project.root / ".venv" / RECORD_NAME).write_text(json.dumps(stopped))
    done = project.run(ENVIRONMENT)
    assert f"deployment.half_installed_removed(name={leaf.name})" in done.err
    assert (leaf / "RECORD").exists()
    assert (project.packages / "leaf.py").exists()
    assert not (project.packages / "~eaf").exists()


@slow
@pytest.mark.parametrize("project", [("slow", one) for one in NEEDS], indirect=True)
def test_a_step_that_would_replace_the_chosen_torch_fails_with_pip_s_last_words(
    project: SmallProject,
) -> None:
    make_wheel(project.wheels, "torch", "2.14.0")
    development = project.root / "requirements-dev.txt"
    development.write_text("torch>=2.14\n")
    done = project.run(ENVIRONMENT, "--with-dev")
    assert done.code == 1
    messages = {"pip": "ResolutionImpossible", "uv": "your requirements are unsatisfiable"}
    assert messages[project.installer] in done.err
    development.write_text("checker==1.0\n")
    assert project.run(ENVIRONMENT, "--with-dev").code == 0


@first_with("pip")
def test_a_stranger_s_settings_do_not_reach_pip(project: SmallProject, tmp_path: Path) -> None:
    """A shell set up for something else must not send the packages elsewhere."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')\n")
    foreign = {"PIP_TARGET": str(tmp_path / "elsewhere"), "PYTHONPATH": str(tmp_path)}
    stopped = {name: value for name, value in record(project).items() if name != "temper"}
    (project.root / ".venv" / RECORD_NAME).write_text(json.dumps(stopped))
    done = project.run(ENVIRONMENT, cwd=tmp_path, **foreign)
    assert done.code == 0, done.err
    assert not (tmp_path / "elsewhere").exists()


@slow
@on_a_machine_without_a_gpu
def test_killed_at_the_start_then_made_anew_for_a_gpu(tmp_path: Path) -> None:
    project = make_small_project(tmp_path)
    process = start_in_a_group_of_its_own(project)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    folder = tmp_path / "bin"
    program(folder / "nvidia-smi", "echo 'GPU 0: NVIDIA L4'")
    done = project.run(ENVIRONMENT, PATH=f"{folder}:{os.environ['PATH']}")
    assert done.code == 0, done.err
    for step in (
        "deployment.virtual_environment(",
        "deployment.pytorch_cuda_build(",
        "requirements-unsloth.txt",
    ):
        assert step in done.err
    assert (project.packages / "torch-2.13.0.dist-info").exists()
    # a machine without a GPU that shares the folder leaves the CUDA build there
    assert project.run(ENVIRONMENT).err == ""


def start_in_a_group_of_its_own(project: SmallProject) -> subprocess.Popen[str]:
    """An installation that has just begun to make its virtual environment."""
    process = subprocess.Popen(
        [str(project.root / ENVIRONMENT)],
        env=project.variables({}),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (project.root / ".venv/pyvenv.cfg").exists():
        assert process.poll() is None
    return process


def program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_interrupted_it_explains_how_to_go_on(tmp_path: Path) -> None:
    project = make_small_project(tmp_path)
    endless = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); signal.pause()"
    (project.root / "backend.py").write_text(endless)  # however late the interrupt comes
    process = start_in_a_group_of_its_own(project)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "deployment.installation_interrupted()" in err
    assert "Traceback" not in err


def pythons(folder: Path, **answers: str) -> dict[str, str]:
    """Variables under which only these interpreters, and `dirname`, can be found."""
    folder.mkdir()
    for name, script in answers.items():
        program(folder / name.replace("_", "."), script)
    for tool in ("bash", "dirname"):
        (folder / tool).symlink_to(shutil.which(tool) or tool)
    return {"PATH": str(folder), "TEMPER_PYTHON": ""}


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ({}, "temper needs Python 3.11 or newer; python3 does not answer: install one"),
        ({"python3": "echo is 3.9"}, "temper needs Python 3.11 or newer; python3 is 3.9: install"),
        (
            {"python3_12": "echo 'pyenv: python3.12: command not found' >&2; exit 127"},
            "temper needs Python 3.11 or newer; python3 does not answer: install one",
        ),
        (
            {"python3": "echo 'has no venv module (Debian: apt install python3.11-venv)'"},
            "python3 has no venv module (Debian: apt install python3.11-venv): install one",
        ),
    ],
)
def test_without_a_fitting_python_it_is_one_sentence(
    tmp_path: Path, answers: dict[str, str], sentence: str
) -> None:
    project = make_small_project(tmp_path)
    done = project.run(LAUNCH, **pythons(tmp_path / "bin", **answers))
    assert done.code == 1
    assert sentence in done.err
    assert len(done.err.splitlines()) == 1
    assert not (project.root / ".venv").exists()


@pytest.mark.parametrize(
    ("script", "code", "sentence"),
    [
        ('[ "$1" = -I ] && echo good && exit; echo "made by $0" >&2; exit 3', 3, "made by"),
        ("exit 1", 1, "chosen does not answer: install one, or name it in TEMPER_PYTHON"),
    ],
)
def test_temper_python_names_the_interpreter_and_no_other_is_taken(
    tmp_path: Path, script: str, code: int, sentence: str
) -> None:
    project = make_small_project(tmp_path)
    program(tmp_path / "chosen", script)
    done = project.run(ENVIRONMENT, TEMPER_PYTHON=str(tmp_path / "chosen"))
    assert done.code == code
    assert sentence in done.err
