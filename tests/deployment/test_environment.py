"""The installer's decisions, one by one; `test_launch_training.py` runs it whole."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.deployment import environment
from infrastructure.deployment.environment import (
    COLAB_FILES,
    Plan,
    make_plan,
    parse,
    to_install,
)
from infrastructure.deployment.installers import InstallError
from tests.deployment.small_project import make_small_project

GB = 1_000_000_000


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project on a machine without a driver."""
    monkeypatch.setattr(environment, "nvidia_driver_present", lambda: False)
    return make_small_project(tmp_path).root


def with_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "nvidia_driver_present", lambda: True)


def write_record(folder: Path, **record: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / environment.RECORD_NAME).write_text(json.dumps(record))


def names(plan: Plan) -> list[str]:
    return [part.name for part in plan.parts]


def test_parts_on_a_machine_without_a_gpu(root: Path) -> None:
    plan = make_plan(root, parse([]))
    assert names(plan) == ["torch", "base", "temper"]
    assert plan.parts[0].fingerprint == "cpu 2.13.0"


def test_unsloth_where_a_gpu_is_found_or_it_is_requested(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = make_plan(root, parse(["--with-unsloth", "--with-dev"]))
    assert names(requested) == ["torch", "base", "unsloth", "dev", "temper"]
    assert not requested.parts[2].with_dependencies
    with_driver(monkeypatch)
    found = make_plan(root, parse([]))
    assert names(found) == ["torch", "base", "unsloth", "temper"]
    assert found.parts[0].fingerprint == "cuda 2.13.0"


def test_the_colab_column_is_an_environment_of_its_own(root: Path) -> None:
    for name in COLAB_FILES:
        (root / name).write_text("leaf==1.0\n")
    plan = make_plan(root, parse(["--colab"]))
    assert plan.folder == root / ".venv-colab"
    assert [f.name for f in plan.parts[1].files] == list(COLAB_FILES)


def test_the_notebook_side_needs_no_torch(root: Path) -> None:
    lines = ["torch>=2.11", "trl==1.0", "torchleaf==1.0", "# trl in a comment", "leaf==1.0"]
    for name in COLAB_FILES:
        (root / name).write_text("")
    (root / COLAB_FILES[0]).write_text("\n".join(lines) + "\n")
    plan = make_plan(root, parse(["--colab", "--without-torch", "--with-dev"]))
    assert plan.folder == root / ".venv-colab-light"
    assert names(plan) == ["base", "dev", "temper"]
    plan.folder.mkdir()
    (kept,) = to_install(plan, plan.parts[0])
    assert kept.read_text().split("\n") == [*lines[2:], ""]
    assert to_install(plan, plan.parts[1]) == plan.parts[1].files


def test_only_colabs_column_comes_without_torch() -> None:
    with pytest.raises(SystemExit):
        parse(["--without-torch"])


def test_a_cuda_build_that_is_there_stays(root: Path) -> None:
    write_record(root / ".venv", torch="cuda 2.13.0")
    assert make_plan(root, parse([])).torch_build == "cuda"


def test_requirements_without_torch_are_refused(root: Path) -> None:
    (root / "requirements.txt").write_text("leaf==1.0\n")
    with pytest.raises(InstallError, match=r"deployment\.torch_version_not_pinned"):
        make_plan(root, parse([]))


@pytest.mark.parametrize("damage", ["", "{", "[1]"])
def test_a_damaged_record_is_no_record(tmp_path: Path, damage: str) -> None:
    (tmp_path / environment.RECORD_NAME).write_text(damage)
    assert environment.read_record(tmp_path) == {}


class FakePip:
    """Remembers what it was told to install; offers what the test says it does."""

    def __init__(self, *offered: str) -> None:
        self.offered = offered
        self.requests: list[tuple[str, ...]] = []
        self.installed: list[tuple[str, ...]] = []
        self.titles: list[str] = []

    def offers(self, requirement: str, *index: str) -> bool:
        self.requests.append((requirement, *index))
        return ("index" if index else "configured") in self.offered

    def install(self, title: str, *arguments: str) -> None:
        self.titles.append(title)
        self.installed.append(arguments)


def install_torch_into(pip: Any, root: Path) -> None:
    """As the plan for `root` on this machine says."""
    build = make_plan(root, parse([])).torch_build
    environment.install_torch(pip, environment.torch_version(root), build)


CPU_INDEX = ("--index-url", environment.PYTORCH_CPU_INDEX)
CPU_BUILD = "torch==2.13.0+cpu"


@pytest.mark.parametrize(
    ("offered", "installed", "title"),
    [
        (("configured", "index"), (CPU_BUILD,), "deployment.pytorch_cpu_build("),
        (("index",), ("--no-deps", *CPU_INDEX, CPU_BUILD), environment.PYTORCH_CPU_INDEX),
        ((), ("torch==2.13.0",), "size=deployment.pytorch_size_with_cuda())"),
    ],
)
def test_the_cpu_build_comes_from_the_first_that_offers_it(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    offered: tuple[str, ...],
    installed: tuple[str, ...],
    title: str,
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    pip: Any = FakePip(*offered)
    install_torch_into(pip, root)
    assert pip.installed == [installed]
    assert title in pip.titles[0]


def test_elsewhere_than_on_linux_the_default_build_is_the_cpu_s(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    pip: Any = FakePip("index")
    install_torch_into(pip, root)
    assert pip.installed == [("torch==2.13.0",)]
    assert "CUDA" not in pip.titles[0]


def test_with_a_driver_no_cpu_build_is_taken(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_driver(monkeypatch)
    pip: Any = FakePip("configured", "index")
    install_torch_into(pip, root)
    assert pip.installed == [("torch===2.13.0",)]
    assert pip.requests == []


def test_a_disk_too_small_is_reported_before_anything_is_done(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2 * GB))
    with pytest.raises(
        InstallError, match=r"deployment\.installation_disk_full.*free=2\.0, needed=4\.0"
    ):
        environment.install(make_plan(root, parse([])))
    assert not (root / ".venv").exists()


def fake_interpreter(folder: Path, version: str) -> None:
    """An environment whose Python answers that it is of this version."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").write_text(f"#!/bin/sh\necho {version}\n")
    (folder / "bin/python").chmod(0o755)


def test_an_environment_made_by_hand_is_built_on(tmp_path: Path) -> None:
    fake_interpreter(tmp_path, "3.12")
    assert environment.is_usable(tmp_path, record={})


def test_an_old_environment_made_by_hand_is_not_touched(tmp_path: Path) -> None:
    fake_interpreter(tmp_path, "3.9")
    with pytest.raises(InstallError, match=r"deployment\.environment_of_old_python.*version=3\.9"):
        environment.is_usable(tmp_path, record={})


def test_an_environment_that_was_moved_is_made_anew(tmp_path: Path) -> None:
    """The programs in it begin with the path of the old place's Python."""
    fake_interpreter(tmp_path, "3.12")
    assert environment.is_usable(tmp_path, record={"location": str(tmp_path)})
    assert not environment.is_usable(tmp_path, record={"location": "/somewhere/else/.venv"})


def test_the_environment_that_a_link_leads_to_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People link .venv to that of another clone, which would be emptied. To install pip, which
    `test_launch_training.py` uses, would take most of the time."""
    run = subprocess.run

    def without_pip(command: list[str], **options: Any) -> object:
        return run([*command, "--without-pip"], **options)

    monkeypatch.setattr(subprocess, "run", without_pip)
    other, link = tmp_path / "other", tmp_path / ".venv"
    (other / "bin").mkdir(parents=True)
    (other / "bin/python").write_text("theirs")
    link.symlink_to(other)
    environment.make_virtual_environment(link)
    assert (other / "bin/python").read_text() == "theirs"
    assert (link.is_symlink(), environment.python_of(link).exists()) == (False, True)


def test_an_environment_without_its_interpreter_is_made_anew(tmp_path: Path) -> None:
    assert not environment.is_usable(tmp_path, record={"location": str(tmp_path)})
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(tmp_path / "removed")
    assert not environment.is_usable(tmp_path, record={})


@pytest.mark.parametrize(("build", "needed"), [("cpu", 4.0), ("cuda", 12.0)])
def test_each_build_has_its_own_size(
    build: Any, needed: float, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(root, root / ".venv", make_plan(root, parse([])).parts, build)
    todo = list(plan.parts)
    for free, is_enough in ((needed * GB, True), (needed * GB - 1, False)):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda path, usage=usage: usage)
        environment._check_disk(plan, todo[1:])
        if is_enough:
            environment._check_disk(plan, todo)
        else:
            with pytest.raises(InstallError, match=rf"folder={root}, .*needed={needed}\)"):
                environment._check_disk(plan, todo)


def test_the_parts_that_are_missing_or_outdated_are_pending(root: Path) -> None:
    plan = make_plan(root, parse([]))
    record = {part.name: part.fingerprint for part in plan.parts}
    assert environment.pending(plan, record) == []
    assert environment.pending(plan, {**record, "base": "old"}) == [plan.parts[1]]
    assert environment.pending(plan, {}) == [*plan.parts]
    write_record(plan.folder, **record, location=str(plan.folder))
    assert not environment.is_ready(plan), "it has no Python"
    fake_interpreter(plan.folder, "3.12")
    assert environment.is_ready(plan)
    for change in ({"location": "/elsewhere"}, {"temper": "old"}):
        write_record(plan.folder, **{**record, "location": str(plan.folder), **change})
        assert not environment.is_ready(plan)
    (root / "requirements.txt").write_text((root / "requirements.txt").read_text() + "# more\n")
    changed = make_plan(root, parse([]))
    assert [part.name for part in environment.pending(changed, record)] == ["base", "temper"]


def test_the_tools_of_developers_bring_what_is_optional_except_on_colab(root: Path) -> None:
    for name in COLAB_FILES:
        (root / name).write_text("leaf==1.0\n")
    usual, colab = (
        make_plan(root, parse(["--with-dev", *more])).parts[-2].files for more in ([], ["--colab"])
    )
    optional = [f"requirements-{name}.txt" for name in ("quantum", "export", "sweep")]
    assert [file.name for file in usual] == ["requirements-dev.txt", *optional]
    assert [file.name for file in colab] == ["requirements-dev.txt"]
    title = make_plan(root, parse(["--with-unsloth"])).parts[2].title
    assert title == "deployment.part_without_dependencies(files=requirements-unsloth.txt)"
    light = make_plan(root, parse(["--colab", "--without-torch"])).parts[0].title
    assert light == f"deployment.part_without_torch(files={' + '.join(COLAB_FILES)})"


def test_each_part_is_installed_in_its_own_way(root: Path) -> None:
    plan = make_plan(root, parse(["--with-unsloth"]))
    packages = plan.folder / "lib/python3.12/site-packages"
    packages.mkdir(parents=True)
    removed: list[str] = []
    pip: Any = FakePip("configured")
    pip.uninstall = lambda title, name: removed.append(name)
    for part in plan.parts:
        environment.install_part(plan, part, pip)
    held = plan.folder / "held.txt"
    assert held.read_text() == "torch==2.13.0\n"
    assert pip.installed == [
        (CPU_BUILD,),
        ("-c", str(held), "-r", str(root / "requirements.txt")),
        ("--no-deps", "-r", str(root / "requirements-unsloth.txt")),
        ("--no-deps", "--editable", str(root)),
    ]
    environment.remove_triton(plan.folder, pip)
    assert removed == []
    (packages / "triton-3.0.dist-info").mkdir()
    environment.remove_triton(plan.folder, pip)
    assert removed == ["triton"]


def test_packages_that_a_killed_installer_left_are_removed(tmp_path: Path) -> None:
    def package(name: str, *rows: str, size: int = 4) -> Path:
        info = tmp_path / f"{name}-1.dist-info"
        info.mkdir()
        (tmp_path / f"{name}.py").write_text("text")
        lines = [f"{name}.py,sha256=x,{size}", "../../bin/x,,7", "/abs,,7", "no,size,", *rows]
        (info / "RECORD").write_text("\n".join(lines))
        return info

    whole, cut = package("whole"), package("cut", size=5)
    missing, odd = package("missing", "lost.py,,1"), package("odd", "odd.py,,many")
    (tmp_path / "bare-1.dist-info").mkdir()
    (tmp_path / "~ld").mkdir()
    (tmp_path / "~file").write_text("")
    assert [environment.is_whole(info) for info in (whole, cut, missing, odd)] == [
        *(True, False, False, False)
    ]
    os.utime(cut, (1000, 1000))
    removed = environment.remove_half_installed(tmp_path, since=2000.0)
    left = {"bare-1.dist-info", "missing-1.dist-info", "odd-1.dist-info", "~ld", "~file"}
    assert {*removed} == left
    os.utime(whole, (2000, 2000))
    os.utime(cut, (2000, 2000))
    assert environment.remove_half_installed(tmp_path, since=2000.0) == ["cut-1.dist-info"]
    assert environment.remove_half_installed(tmp_path) == []
    assert [path.name for path in tmp_path.glob("*.dist-info")] == ["whole-1.dist-info"]


@pytest.mark.parametrize(
    ("is_ready", "arguments", "code", "did"),
    [
        (True, [], 0, []),
        (True, ["--check"], 0, []),
        (False, ["--check"], 1, []),
        (False, [], 0, ["install", "doctor"]),
        (False, ["--colab", "--without-torch"], 0, ["install"]),
    ],
)
def test_what_is_ready_is_not_installed_again(
    is_ready: bool,
    arguments: list[str],
    code: int,
    did: list[str],
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    for name in COLAB_FILES:
        (root / name).write_text("leaf==1.0\n")
    monkeypatch.setattr(environment, "ROOT", root)
    monkeypatch.setattr(environment, "is_ready", lambda plan: is_ready)
    monkeypatch.setattr(environment, "install", lambda plan: done.append("install"))
    monkeypatch.setattr(environment, "show_machine", lambda plan: done.append("doctor"))
    monkeypatch.setattr(environment.signal, "signal", lambda *_: None)
    assert environment.main(arguments) == code
    assert done == did


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (InstallError("it is full"), 1, "temper: it is full"),
        (KeyboardInterrupt(), 130, "deployment.installation_interrupted()"),
    ],
)
def test_a_failed_installation_has_an_exit_code(
    error: BaseException,
    code: int,
    shown: str,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(plan: Plan) -> None:
        raise error

    monkeypatch.setattr(environment, "ROOT", root)
    monkeypatch.setattr(environment, "install", fail)
    monkeypatch.setattr(environment.signal, "signal", lambda *_: None)
    assert environment.main([]) == code
    assert capsys.readouterr().err.strip() == shown
