"""uv where it is found, else pip, from the same sources; `test_launch_training.py` runs both."""

import json
import os
from pathlib import Path

import pytest

from infrastructure.deployment import installers
from infrastructure.deployment.installers import (
    InstallError,
    Pip,
    Uv,
    UvElsePip,
    find_uv,
    installer_for,
)

# Stand-ins for the programs: each adds its arguments and variables to a file, and ends as told.
RECORDER = """#!/bin/sh
[ "$1" = --version ] && {{ echo "uv {version}"; exit 0; }}
{python} - "$@" <<'END'
import json, os, sys
wanted = ("UV_", "SSL_CERT_FILE", "PIP_")
variables = {{k: v for k, v in os.environ.items() if k.startswith(wanted)}}
with open({file!r}, "a") as file:
    file.write(json.dumps([{name!r}, sys.argv[1:], variables, os.getcwd()]) + "\\n")
END
{more}
"""


class Machine:
    """A folder with stand-ins for uv and for the Python that has pip."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.calls_file = folder, folder / "calls"
        self.python, self.log = folder / "python", folder / "install.log"
        self.set_pip_settings()
        for variable in list(os.environ):
            if variable.startswith(("UV_", "PIP_")) or variable == "SSL_CERT_FILE":
                monkeypatch.delenv(variable)
        monkeypatch.delenv("TEMPER_INSTALLER", raising=False)
        monkeypatch.setenv("PATH", f"{folder}:{os.defpath}")

    def program(self, name: str, more: str = "", version: str = "0.9.1 (x)") -> None:
        python, file = "/usr/bin/env python3", str(self.calls_file)
        text = RECORDER.format(name=name, more=more, version=version, python=python, file=file)
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def set_pip_settings(self, *lines: str, more: str = "") -> None:
        """What `pip config list` says."""
        settings_text = "\n".join(lines)
        self.program("python", f"cat <<'END'\n{settings_text}\nEND\n{more}")

    def calls(self) -> list[list[str]]:
        """Program and arguments of what was run to change packages."""
        lines = self.calls_file.read_text().splitlines()
        all_calls = [json.loads(line) for line in lines]
        return [[call[0], *call[1]] for call in all_calls if "config" not in call[1]]

    def variables(self) -> dict[str, str]:
        """Of the last program that was run."""
        return dict(json.loads(self.calls_file.read_text().splitlines()[-1])[2])


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_uv_where_it_is_found_else_pip(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(installer_for(machine.python, machine.log), Pip)
    machine.program("uv")
    assert isinstance(installer_for(machine.python, machine.log), UvElsePip)
    monkeypatch.setenv("TEMPER_INSTALLER", "pip")
    assert isinstance(installer_for(machine.python, machine.log), Pip)
    monkeypatch.setenv("TEMPER_INSTALLER", "UV")
    assert isinstance(installer_for(machine.python, machine.log), Uv)


@pytest.mark.parametrize("text", ["exit 1", "echo uv 0.4.30", "echo something else"])
def test_a_uv_that_does_not_run_or_is_too_old_is_none(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (machine.folder / "uv").write_text(f"#!/bin/sh\n{text}\n")
    (machine.folder / "uv").chmod(0o755)
    assert find_uv() is None
    assert isinstance(installer_for(machine.python, machine.log), Pip)
    monkeypatch.setenv("TEMPER_INSTALLER", "uv")
    with pytest.raises(InstallError, match=r"deployment\.uv_not_found.*oldest=0\.5"):
        installer_for(machine.python, machine.log)


def test_another_word_is_refused(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPER_INSTALLER", "conda")
    with pytest.raises(InstallError, match=r"deployment\.unknown_installer.*value=conda"):
        installer_for(machine.python, machine.log)


def test_uv_is_given_the_arguments_of_pip(machine: Machine) -> None:
    machine.program("uv")
    installer = installer_for(machine.python, machine.log)
    installer.install("files", "-c", "/held.txt", "-r", "/requirements.txt")
    installer.install("alone", "--no-deps", "unsloth==1.0")
    installer.install("itself", "--no-deps", "--editable", "/project")
    installer.uninstall("triton", "triton")
    assert installer.offers("torch==2+cpu", "--index-url", "https://cpu")
    where = ["--python", str(machine.python)]
    best = ["--no-progress", "--index-strategy", "unsafe-best-match"]
    install = ["uv", "pip", "install", *where, *best]
    assert machine.calls() == [
        [*install, "-c", "/held.txt", "-r", "/requirements.txt"],
        [*install, "--no-deps", "unsloth==1.0"],
        [*install, "--reinstall", "--no-deps", "--editable", "/project"],
        ["uv", "pip", "uninstall", *where, "triton"],
        [
            *install,
            *("--dry-run", "--no-deps", "--reinstall", "--only-binary", ":all:"),
            *("--index-url", "https://cpu", "torch==2+cpu"),
        ],
    ]


def test_uv_looks_where_pip_does_and_no_address_is_seen_by_others(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files and variables of pip, the variables last; they reach uv as variables."""
    (tmp_path / "wheels").mkdir()
    monkeypatch.chdir(tmp_path)
    secret = "https://user:password@mirror/simple"
    machine.set_pip_settings(
        f"global.index-url='{secret}'",
        "global.extra-index-url='https://one/simple\\nhttps://two/simple'",
        "global.find-links='/not/this'",
        "install.trusted-host='mirror'",
        ":env:.find-links='wheels file:///tmp /missing file:///missing https://more'",
        ":env:.cert='/etc/certificates'",
        ":env:.default-timeout='180'",
        ":env:.no-index='1'",
        "freeze.all='true'",
    )
    machine.program("uv")
    installer = installer_for(machine.python, machine.log)
    installer.install("leaf", "leaf")
    assert "--no-index" in machine.calls()[-1]
    found = machine.variables()
    assert found["UV_DEFAULT_INDEX"] == secret
    assert found["UV_INDEX"] == "https://one/simple https://two/simple"
    assert found["UV_FIND_LINKS"] == f"{tmp_path / 'wheels'},file:///tmp,https://more"
    assert found["UV_INSECURE_HOST"] == "mirror"
    assert found["SSL_CERT_FILE"] == "/etc/certificates"
    assert found["UV_HTTP_TIMEOUT"] == "180"
    assert "password" not in json.dumps(machine.calls()) + machine.log.read_text()
    installer.install("torch", "--index-url", "https://cpu", "torch")
    assert "UV_DEFAULT_INDEX" not in machine.variables()


def test_what_is_set_for_uv_itself_holds_and_what_leads_elsewhere_does_not(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.set_pip_settings("global.index-url='https://pips'")
    machine.program("uv")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uvs")
    others = {f"UV_{name}" for name in ("SYSTEM_PYTHON", "PYTHON", "TARGET", "PREFIX")}
    others |= {f"PIP_{name}" for name in ("USER", "TARGET", "PREFIX", "ROOT")}
    for name in others:
        monkeypatch.setenv(name, "1")
    installer_for(machine.python, machine.log).install("leaf", "leaf")
    found = machine.variables()
    assert found["UV_DEFAULT_INDEX"] == "https://uvs"
    assert not found.keys() & others
    for name in ("PYTHONPATH", "PYTHONHOME"):
        monkeypatch.setenv(name, "/elsewhere")
    assert not installers._variables().keys() & {*others, "PYTHONPATH", "PYTHONHOME"}


@pytest.mark.parametrize("setting", ["timeout", "default-timeout"])
def test_uv_waits_as_long_as_pip_and_holds_to_its_constraints(
    machine: Machine, setting: str
) -> None:
    machine.set_pip_settings("global.constraint='held.txt'", f"global.{setting}='77'")
    machine.program("uv")
    installer_for(machine.python, machine.log).install("leaf", "leaf")
    found = machine.variables()
    assert found["UV_CONSTRAINT"] == str(Path("held.txt").absolute())
    assert found["UV_HTTP_TIMEOUT"] == "77"


def test_settings_of_pip_that_change_nothing_of_what_is_installed_leave_uv_its_work(
    machine: Machine,
) -> None:
    names = ["disable-pip-version-check", "no-input", "no-color", "progress-bar", "quiet"]
    names += ["verbose", "cache-dir", "no-cache-dir", "root-user-action", "log", "retries"]
    names += ["no-warn-script-location", "config-file", "no-compile", "user", "target"]
    names += ["prefix", "root", "require-virtualenv", "no-index"]
    machine.set_pip_settings(*(f"global.{name}='1'" for name in names))
    machine.program("uv")
    assert isinstance(installer_for(machine.python, machine.log), UvElsePip)


@pytest.mark.parametrize("setting", ["global.no-binary='torch'", ":env:.proxy='http://p'"])
def test_where_pip_has_a_setting_that_uv_would_not_know_pip_installs(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    machine.set_pip_settings(setting)
    machine.program("uv")
    assert isinstance(installer_for(machine.python, machine.log), Pip)
    monkeypatch.setenv("TEMPER_INSTALLER", "uv")
    assert isinstance(installer_for(machine.python, machine.log), Uv)


def test_what_uv_cannot_do_pip_does(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    machine.program("uv", "echo 'I know no such option'; exit 2")
    installer = installer_for(machine.python, machine.log)
    installer.install("leaf", "leaf")
    installer.uninstall("triton", "triton")
    assert installer.offers("torch")
    programs = [(call[0], call[call.index("pip") + 1]) for call in machine.calls()]
    actions = ["install", "uninstall", "install"]
    assert programs == [(name, action) for action in actions for name in ("uv", "python")]
    assert "deployment.uv_failed(" in capfd.readouterr().err
    assert "I know no such option" in machine.log.read_text()


def test_where_both_fail_pip_s_words_are_the_last(machine: Machine) -> None:
    machine.program("uv", "exit 2")
    installer = installer_for(machine.python, machine.log)
    more = "echo 'no space left'; exit 1"
    machine.set_pip_settings(more=f"for n in $(seq 20); do echo line $n; done; {more}")
    with pytest.raises(InstallError) as caught:
        installer.install("leaf", "leaf")
    last = "\n".join(
        f"    {line}" for line in (*(f"line {n}" for n in range(10, 21)), "no space left")
    )
    command = "pip install --no-input --progress-bar=off --no-compile leaf"
    of = f"command={command}, log={machine.log}, last_lines={last}"
    assert str(caught.value) == f"deployment.command_failed({of})"


def test_where_uv_is_requested_its_own_words_are_shown(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.program("uv", "echo 'no such version'; exit 1")
    monkeypatch.setenv("TEMPER_INSTALLER", "uv")
    with pytest.raises(InstallError, match=r"deployment\.command_failed"):
        installer_for(machine.python, machine.log).install("leaf", "leaf")


def test_uv_runs_where_no_project_of_the_user_is(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take settings from a pyproject.toml around it."""
    machine.program("uv")
    (tmp_path / "users").mkdir()
    monkeypatch.chdir(tmp_path / "users")
    installer_for(machine.python, machine.log).install("leaf", "leaf")
    assert json.loads(machine.calls_file.read_text().splitlines()[-1])[3] == str(tmp_path)


def test_pip_changes_the_environment_of_its_python(machine: Machine) -> None:
    pip = Pip(machine.python, machine.log)
    pip.install("leaf", "-c", "held.txt", "leaf")
    pip.uninstall("triton", "triton")
    assert pip.offers("torch==2+cpu", "--index-url", "https://cpu")
    alone = ["python", "-P", "-m", "pip"]
    assert machine.calls() == [
        [
            *(*alone, "install", "--no-input", "--progress-bar=off", "--no-compile"),
            *("-c", "held.txt", "leaf"),
        ],
        [*alone, "uninstall", "--yes", "triton"],
        [
            *(*alone, "install", "--no-input", "--dry-run", "--no-deps", "--ignore-installed"),
            *("--only-binary=:all:", "--timeout", "8", "--retries", "1"),
            *("--index-url", "https://cpu", "torch==2+cpu"),
        ],
    ]
    assert machine.variables()["PIP_DISABLE_PIP_VERSION_CHECK"] == "1"
    machine.set_pip_settings(more="exit 1")
    assert not pip.offers("torch")
    machine.program("uv")
    uv = Uv(str(machine.folder / "uv"), machine.python, machine.log, {"timeout": "99"})
    assert uv.offers("torch")
    quick = {"UV_HTTP_TIMEOUT": "8", "UV_HTTP_RETRIES": "1", "UV_PYTHON_DOWNLOADS": "never"}
    assert machine.variables().items() >= quick.items()
    machine.program("uv", "exit 1")
    assert not uv.offers("torch")


def test_a_step_shows_its_title_and_how_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with installers.step("leaf") as show:
        show("a detail, only in a terminal")
    assert capsys.readouterr().err == "  leaf … 0 s\n"
    with pytest.raises(KeyError), installers.step("leaf"):
        raise KeyError
    assert capsys.readouterr().err == "  leaf … not finished\n"
