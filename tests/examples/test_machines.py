"""The files for schedulers: their syntax, their temper lines, and the times that fit together.

SkyPilot, Kubeflow and Slurm are not installed here: what their own tools say of the files stands in
docs/when-the-machine-goes-away.md.
"""

import configparser
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from infrastructure.backup.backends import open_place
from infrastructure.backup.backends.bucket import BucketPlace
from infrastructure.commands.main import create_parser
from infrastructure.commands.parser import parse
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.flags import flags_given
from infrastructure.config.sources.load import load_config
from infrastructure.core.exit_codes import ExitCode
from tests.examples.scripts import ROOT

FOLDER = ROOT / "examples/machines"
FILES = sorted(path.name for path in FOLDER.iterdir())
WITH_OWN_DISK = {"slurm.sh", "temper.service"}  # the run's folder is there on the next machine, too
GO_ON = {ExitCode.INTERRUPTED, ExitCode.TERMINATED}


def text_of(name: str) -> str:
    return (FOLDER / name).read_text()


def document(name: str) -> Any:
    return yaml.safe_load(text_of(name))


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)  # a key twice is an error
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text_of("temper.service"))
    return parser


def shell_of(name: str) -> str:
    """What a shell runs; of a TrainJob and a unit, the words that are run without one."""
    if name == "trainjob.yaml":
        trainer = document(name)["spec"]["trainer"]
        return shlex.join(trainer["command"] + trainer["args"])
    if name == "temper.service":
        return unit()["Service"]["ExecStart"]
    if name == "skypilot.yaml":
        return str(document(name)["setup"] + document(name)["run"])
    return text_of(name)


def settings_of(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> DeploymentConfig:
    """What the one temper line of a file asks for."""
    joined = shell_of(name).replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if not line.startswith("#")]
    (line,) = [line for line in lines if re.search(r"\btemper train ", line)]
    words = shlex.split(line)
    monkeypatch.chdir(folder)
    options = parse(create_parser(), words[words.index("temper") + 1 :])
    return load_config(None, flags={**flags_given(options), "data.path": options.data})


def slurm_option(name: str) -> str:
    found = re.search(rf"^#SBATCH --{name}=(\S+)$", text_of("slurm.sh"), re.M)
    assert found is not None, name
    return found[1]


def test_each_file_is_looked_at() -> None:
    known = ["hf_jobs.sh", "skypilot.yaml", "slurm.sh", "temper.service", "trainjob.yaml"]
    assert known == FILES


@pytest.mark.parametrize("name", FILES)
def test_a_shell_reads_it(name: str) -> None:
    done = subprocess.run(
        ["bash", "-n"], input=shell_of(name), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", FILES)
def test_its_temper_line_parses_and_the_run_is_there_on_the_next_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(name, tmp_path, monkeypatch)
    assert Path(settings.data.path or "").name == "chats.jsonl"
    if name in WITH_OWN_DISK:
        assert settings.backup.place is None
    else:
        assert isinstance(open_place(settings.backup.place or ""), BucketPlace)


def test_slurm_stops_the_training_after_its_deadline_and_queues_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours, minutes, seconds = map(int, slurm_option("time").split(":"))
    limit = 3600 * hours + 60 * minutes + seconds
    name, _, before = slurm_option("signal").partition("@")
    assert signal.Signals[f"SIG{name}"] == signal.SIGTERM
    deadline = settings_of("slurm.sh", tmp_path, monkeypatch).training.deadline
    assert deadline is not None
    assert deadline + 300 <= limit - int(before)  # loading takes time, too
    assert "\n#SBATCH --requeue\n" in text_of("slurm.sh")
    assert {int(code) for code in re.findall(r"-eq (\d+)", text_of("slurm.sh"))} == GO_ON


def test_the_job_of_the_hub_lasts_longer_than_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = re.search(r"--timeout (\d+)h", text_of("hf_jobs.sh"))
    deadline = settings_of("hf_jobs.sh", tmp_path, monkeypatch).training.deadline
    assert limit is not None
    assert deadline is not None
    assert deadline + 600 <= int(limit[1]) * 3600


def test_a_spot_job_recovers_from_what_goes_on() -> None:
    resources = document("skypilot.yaml")["resources"]
    assert resources["use_spot"] is True
    codes = resources["job_recovery"]["recover_on_exit_codes"]
    assert set(codes) == {*GO_ON, ExitCode.NOT_CONFIRMED}


def test_a_unit_goes_on_after_a_reboot_and_not_with_wrong_input() -> None:
    sections = unit()
    service = sections["Service"]
    assert sections["Install"]["WantedBy"] == "multi-user.target"
    assert service["Restart"] == "on-failure"
    assert int(service["RestartPreventExitStatus"]) == ExitCode.WRONG_INPUT
    assert int(service["SuccessExitStatus"]) == ExitCode.TERMINATED
    assert signal.Signals[service["KillSignal"]] == signal.SIGTERM
    assert service["TimeoutStopSec"] == "5min"
