"""Two equal commands at the same instant begin one run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.run.find import BEGINNING, Beginning, is_same
from tests.deployment.runs import ROOT, runs_of, small_config
from tests.forks import forked_python

# Begins again and again; what it finds inside is somebody who is inside too.
CONTENDER = """
import os, sys, time
from pathlib import Path
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.run.find import Beginning
folder, end = Path(sys.argv[1]), time.monotonic() + float(sys.argv[2])
config = DeploymentConfig(output_dir=str(folder / "runs"))
num_begun = 0
print("ready", flush=True)
while time.monotonic() < end:
    try:
        beginning = Beginning(config)
    except ValueError as error:
        assert "is begun by" in str(error), error
        continue
    os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))
    num_begun += 1
    (folder / "inside").unlink()
    beginning.end()
print(num_begun)
"""


def contender(folder: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CONTENDER, str(folder), str(seconds)]
    return forked_python(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_a_second_equal_command_is_refused_until_others_find_the_run(tmp_path: Path) -> None:
    """At every moment between its first look and the end of its first measurement."""
    refused: list[str] = []

    def try_again(line: str) -> None:
        if line.startswith("Preparing model") or "measuring the model" in line:
            with pytest.raises(
                ValueError, match="train another beside it with --new-run"
            ) as raised:
                TrainingDeployment(small_config(tmp_path, max_steps=1), say=lines.append).run()
            refused.append(str(raised.value))

    lines: list[str] = []
    TrainingDeployment(small_config(tmp_path, max_steps=1), say=try_again).run()
    me = f"process {os.getpid()} on {os.uname().nodename}"
    assert f"the same training is begun by {me} just now" in refused[0]
    assert f"is being trained by {me}" in refused[1]
    assert len(runs_of(tmp_path)) == 1
    assert not (tmp_path / "runs" / BEGINNING).exists()


def test_another_training_begins_beside_it(tmp_path: Path) -> None:
    first = Beginning(small_config(tmp_path))
    Beginning(small_config(tmp_path, seed=2)).end()
    with pytest.raises(ValueError, match="is begun by process"):
        Beginning(small_config(tmp_path))
    first.end()
    first.end()
    Beginning(small_config(tmp_path)).end()


def test_one_that_was_killed_stands_in_nobody_s_way(tmp_path: Path) -> None:
    code = CONTENDER.replace("num_begun += 1", "print('in', flush=True); time.sleep(600)")
    command = [sys.executable, "-c", code, str(tmp_path), "60"]
    with forked_python(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"ready\n", b"in\n"]
        config = DeploymentConfig(output_dir=str(tmp_path / "runs"))
        with pytest.raises(ValueError, match=f"process {process.pid} on "):
            Beginning(config)
        process.send_signal(signal.SIGKILL)
        process.wait()
    Beginning(config).end()


def test_never_are_two_inside(tmp_path: Path) -> None:
    processes = [contender(tmp_path, 1.0) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sum(int(words[1]) for words in outputs) > 20


def test_an_output_folder_that_cannot_be_made_is_no_matter_of_this(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    begun = time.monotonic()
    Beginning(DeploymentConfig(output_dir=str(tmp_path / "file/runs"))).end()
    assert time.monotonic() - begun < 5


def test_where_the_library_is_left_open_it_is_the_one_that_the_run_began_with() -> None:
    """A run whose checkpoints say Unsloth is found by who lets it choose, and by no other."""
    taken = {"model.backend": "unsloth"}
    assert is_same(taken, {"model.backend": "auto"}, [])
    assert is_same({"model.backend": "auto"}, {"model.backend": "auto"}, [])
    assert not is_same(taken, {"model.backend": "transformers"}, [])
    assert not is_same({"model.backend": "auto"}, taken, [])
