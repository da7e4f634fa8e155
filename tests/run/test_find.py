"""Two equal commands at the same instant begin one run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from infrastructure.backup.format.store import Store
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.fingerprint import BACKEND, result_settings
from infrastructure.core.checksums import read_record, write_record
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.run import find
from infrastructure.run.directory import RunDirectory
from infrastructure.run.find import (
    BEGINNING,
    Beginning,
    ModelLibrary,
    changed_under_way,
    has_other_settings,
    is_same,
    newest_of_this_purpose,
    settings_now,
    unfinished_beside,
)
from infrastructure.run.lock import only_trainer_of
from tests.deployment.runs import ROOT, runs_of, small_config
from tests.forks import forked_python

# Begins again and again, until all that are wanted have begun often enough together; what it finds
# inside is somebody who is inside too.
CONTENDER = """
import os, sys, time
from pathlib import Path
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.run.find import Beginning
folder, num_wanted = Path(sys.argv[1]), int(sys.argv[2])
config = DeploymentConfig(output_dir=str(folder / "runs"))
mine = folder / f"begun-{os.getpid()}"
mine.touch()
print("ready", flush=True)

def are_done():
    begun = [path.stat().st_size for path in folder.glob("begun-*")]
    return len(begun) == num_wanted and min(begun) > 5 and sum(begun) > 30

while not are_done():
    try:
        beginning = Beginning(config)
    except ValueError as error:
        assert "run.same_run_is_starting" in str(error), error
        continue
    os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))
    with mine.open("a") as file:
        file.write(".")
    (folder / "inside").unlink()
    beginning.end()
print(mine.stat().st_size)
"""


def contender(folder: Path, num_contenders: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CONTENDER, str(folder), str(num_contenders)]
    return forked_python(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_a_second_equal_command_is_refused_until_others_find_the_run(tmp_path: Path) -> None:
    """At every moment between its first look and the end of its first measurement."""
    refused: list[str] = []

    def try_again(line: str) -> None:
        if line.startswith(("deployment.model_line(", "deployment.training_starts(")):
            with pytest.raises(ValueError) as raised:
                TrainingDeployment(small_config(tmp_path, max_steps=1), say=lines.append).run()
            refused.append(str(raised.value))

    lines: list[str] = []
    TrainingDeployment(small_config(tmp_path, max_steps=1), say=try_again).run()
    me = f"process {os.getpid()} on {os.uname().nodename}"
    assert refused[0] == f"run.same_run_is_starting(holder={me})"
    assert "run.run_is_being_trained" in refused[1]
    assert f"trainer={me}" in refused[1]
    assert len(runs_of(tmp_path)) == 1
    assert not (tmp_path / "runs" / BEGINNING).exists()


def test_another_training_begins_beside_it(tmp_path: Path) -> None:
    first = Beginning(small_config(tmp_path))
    Beginning(small_config(tmp_path, seed=2)).end()
    with pytest.raises(ValueError, match=r"run\.same_run_is_starting"):
        Beginning(small_config(tmp_path))
    first.end()
    first.end()
    Beginning(small_config(tmp_path)).end()


def test_one_that_was_killed_stands_in_nobody_s_way(tmp_path: Path) -> None:
    code = CONTENDER.replace("file.write", "print('in', flush=True); time.sleep(600); file.write")
    command = [sys.executable, "-c", code, str(tmp_path), "1"]
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
    processes = [contender(tmp_path, 3) for _ in range(3)]
    outputs = [process.communicate(timeout=120)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sum(int(words[1]) for words in outputs) > 30


def test_a_holder_that_has_not_written_its_name_is_another_process(tmp_path: Path) -> None:
    config = DeploymentConfig(output_dir=str(tmp_path))
    first = Beginning(config)
    [file] = (tmp_path / BEGINNING).iterdir()
    file.write_text("")
    with pytest.raises(ValueError, match=r"same_run_is_starting\(holder=another process\)"):
        Beginning(config)
    first.end()


def test_an_output_folder_that_cannot_be_made_is_no_matter_of_this(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    begun = time.monotonic()
    Beginning(DeploymentConfig(output_dir=str(tmp_path / "file/runs"))).end()
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize(
    ("configured", "taken", "wanted", "same"),
    [
        ("auto", "unsloth", "auto", True),  # what it chose, it goes on with
        ("auto", "unsloth", "unsloth", True),
        ("auto", "transformers", "transformers", True),
        ("auto", "transformers", "unsloth", False),
        ("auto", "unsloth", "transformers", False),
        ("unsloth", "unsloth", "unsloth", True),
        ("unsloth", "unsloth", "auto", False),
        ("transformers", "transformers", "auto", True),
        ("transformers", "transformers", "unsloth", False),
        (None, "unsloth", "auto", True),
        (None, "unsloth", "transformers", False),
        (None, "transformers", "unsloth", False),
    ],
)
def test_another_library_is_another_training(
    configured: str | None, taken: str, wanted: str, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "is_installed", lambda package: False)
    recorded = {BACKEND: taken if configured == "unsloth" or taken == "unsloth" else "auto"}
    assert is_same(recorded, {BACKEND: wanted}, [], ModelLibrary(configured, taken)) is same
    if configured is None:
        assert is_same(recorded, {BACKEND: wanted}, []) is same


def test_auto_may_take_unsloth_where_it_is_installed_and_a_gpu_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(find, "is_installed", lambda package: package == "unsloth")
    for is_without_gpu in (True, False):
        monkeypatch.setattr(find, "has_no_gpu", lambda answer=is_without_gpu: answer)
        assert ModelLibrary("transformers", "transformers").is_same("auto") is is_without_gpu


def finished_run(folder: Path, config: DeploymentConfig, recoveries: list[str]) -> RunDirectory:
    """A run of which nothing is there but its records."""
    run = RunDirectory(folder / "runs/20260101-000000-one-0000")
    run.final.mkdir(parents=True)
    write_record(run.run_file, {"configuration": config.to_dict()})
    met = [{"kind": kind, "action": "", "step": 3} for kind in recoveries]
    write_record(run.summary_file, {"status": "finished", "recoveries": met})
    return run


@pytest.mark.parametrize(
    ("met", "key", "found"),
    [
        ([], "loss_spike", True),
        (["out_of_memory"], "loss_spike", True),
        (["loss_spike"], "loss_spike", False),
        (["loss_spike"], "not_finite", True),
        (["not_finite"], "not_finite", False),
    ],
)
def test_bad_losses_dealt_with_otherwise_are_another_training(
    tmp_path: Path, met: list[str], key: str, found: bool
) -> None:
    """A spike was noted, and the same command says `roll_back` now: it would train otherwise."""
    output = {"output_dir": str(tmp_path / "runs")}
    run = finished_run(tmp_path, DeploymentConfig(**output), met)
    again = newest_of_this_purpose(DeploymentConfig(**output), [])
    assert again is not None
    assert again.path == run.path
    other = DeploymentConfig(**output, **{f"training.recovery.{key}": "stop"})
    assert (newest_of_this_purpose(other, []) is not None) is found
    write_record(run.summary_file, {"status": "finished", "recoveries": None})
    assert newest_of_this_purpose(other, []) is not None
    write_record(run.summary_file, {"status": "stopped", "recoveries": [{"kind": key}]})
    assert newest_of_this_purpose(other, []) is not None, "it resumes with these settings"


def test_a_run_that_was_begun_with_unsloth_is_not_that_of_the_plain_command(
    tmp_path: Path,
) -> None:
    output = {"output_dir": str(tmp_path / "runs")}
    by_unsloth = DeploymentConfig(**output, model={"backend": "unsloth"})
    finished_run(tmp_path, by_unsloth, [])
    assert newest_of_this_purpose(DeploymentConfig(**output), []) is None
    assert newest_of_this_purpose(by_unsloth, []) is not None


def test_a_damaged_checkpoint_leaves_the_settings_of_the_one_before(tmp_path: Path) -> None:
    """A setting was changed and accepted at step 1; the checkpoint at step 2 is damaged."""
    run = finished_run(tmp_path, DeploymentConfig(), [])
    store = Store(run.checkpoints)
    store.prepare()
    began: dict[str, object] = {"seed": 1}
    for step in (1, 2):
        store.commit({}, {"identity": {"settings": {"seed": 2 + step}}}, step=step)
    assert settings_now(run, began) == {"seed": 4}
    store.manifest_path(store.versions()[0]).write_text("{")
    assert settings_now(run, began) == {"seed": 3}
    store.manifest_path(store.versions()[1]).write_text("{")
    assert settings_now(run, began) == began


def other_run(folder: Path, name: str, steps: int = 1, **settings: Any) -> RunDirectory:
    """An unfinished run with a checkpoint."""
    run = RunDirectory(folder / "runs" / name)
    run.path.mkdir(parents=True)
    config = DeploymentConfig(output_dir=str(folder / "runs"), **settings)
    write_record(run.run_file, {"configuration": config.to_dict()})
    values = {"identity": {"settings": result_settings(config)}}
    for step in range(1, steps + 1):
        Store(run.checkpoints).commit({}, values, step=step)
    return run


NEAR, NEARER = (f"2026010{n}-000000-a-0000" for n in (1, 2))


def test_a_run_without_its_record_is_known_by_its_checkpoints(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = DeploymentConfig(output_dir=str(tmp_path / "runs"))
    run = other_run(tmp_path, NEAR)
    of_a_script = other_run(tmp_path, NEARER)
    write_record(of_a_script.run_file, {"trainer": {"class": "x"}})
    assert newest_of_this_purpose(config, []) == run
    run.run_file.unlink()
    assert newest_of_this_purpose(config, []) == run
    assert newest_of_this_purpose(with_seed(config), []) is None
    assert not has_other_settings(run, config)
    assert has_other_settings(run, with_seed(config))
    assert unfinished_beside(with_seed(config)) is None
    assert caplog.text == ""
    lost = other_run(tmp_path, "20260103-000000-a-0000", steps=0)
    lost.run_file.write_text("{")
    assert newest_of_this_purpose(config, []) == run
    damaged = f"core.damaged_record(path={lost.run_file}"
    assert f"run.unreadable_run_skipped(run={lost.run_id}, error={damaged}" in caplog.text
    assert not has_other_settings(lost, config)


def test_a_default_that_has_changed_since_a_run_began_is_no_other_setting(tmp_path: Path) -> None:
    config = DeploymentConfig(output_dir=str(tmp_path / "runs"))
    run = other_run(tmp_path, NEAR, **{"training.seed": 7})
    record = read_record(run.run_file)
    record["configuration"]["sources"].pop("training.seed")
    write_record(run.run_file, record)
    assert newest_of_this_purpose(config, []) == run
    assert not has_other_settings(run, config)
    assert unfinished_beside(config) is None
    other = DeploymentConfig(**{"training.seed": 8, "output_dir": config.output_dir})
    assert newest_of_this_purpose(other, []) is None


def test_an_unfinished_run_with_other_settings_is_named_with_them(tmp_path: Path) -> None:
    config = DeploymentConfig(output_dir=str(tmp_path / "runs"))
    other_run(tmp_path, NEAR, **{"training.seed": 7, "data.packing": False})
    found = unfinished_beside(config)
    assert found is not None
    assert found[0].run_id == NEAR
    assert found[1] == ["packing (false there, true here)", "seed (7 there, 0 here)"]
    other_run(tmp_path, NEARER, **{"training.seed": 8})
    found = unfinished_beside(config)
    assert found is not None
    assert (found[0].run_id, found[1]) == (NEARER, ["seed (8 there, 0 here)"])
    assert unfinished_beside(DeploymentConfig(output_dir=str(tmp_path / "none"))) is None


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"model.name": "some/model", "training.seed": 7}, 1),
        ({"data.path": "other.jsonl", "training.seed": 7}, 1),
        ({"training.seed": 7}, 0),  # there is nothing to resume
        ({}, 1),  # the same settings
    ],
)
def test_a_run_of_another_purpose_is_not_named(
    settings: dict[str, Any], steps: int, tmp_path: Path
) -> None:
    other_run(tmp_path, NEAR, steps, **settings)
    assert unfinished_beside(DeploymentConfig(output_dir=str(tmp_path / "runs"))) is None


def test_a_run_that_is_finished_or_being_trained_is_not_named(tmp_path: Path) -> None:
    config = DeploymentConfig(output_dir=str(tmp_path / "runs"))
    run = other_run(tmp_path, NEAR, **{"training.seed": 7})
    with only_trainer_of(run.path):
        assert unfinished_beside(config) is None
    (run.path / "trained_by").write_text("process 7 on another-machine\n")
    assert unfinished_beside(config) is None, "it may be trained there"
    (run.path / "trained_by").unlink()
    assert unfinished_beside(config) is not None
    write_record(run.summary_file, {"status": "finished"})
    run.final.mkdir()
    assert unfinished_beside(config) is None


def with_seed(config: DeploymentConfig) -> DeploymentConfig:
    return DeploymentConfig(**{"training.seed": 7, "output_dir": config.output_dir})


def test_settings_that_differ_now_are_known(tmp_path: Path) -> None:
    config = DeploymentConfig(output_dir=str(tmp_path / "runs"))
    run = other_run(tmp_path, NEAR)
    assert not has_other_settings(run, config)
    assert not has_other_settings(run, config.copy_with(run_name="x"))
    changed = with_seed(config)
    assert has_other_settings(run, changed)
    values = {"identity": {"settings": result_settings(changed)}}
    Store(run.checkpoints).commit({}, values, step=2)  # it has resumed with them
    assert has_other_settings(run, config)
    assert not has_other_settings(run, changed)
    assert newest_of_this_purpose(config, []) == newest_of_this_purpose(changed, []) == run


def test_a_run_that_was_changed_under_way_is_named_and_not_resumed(tmp_path: Path) -> None:
    config = DeploymentConfig(output_dir=str(tmp_path / "runs"))
    run = other_run(tmp_path, NEAR)
    change = {"name": "seed", "was": 0, "is": 7, "effect": "changes the result"}
    history = [{"when": "", "step": 1, "command": "", "changes": [change]}]
    values = {"identity": {"settings": result_settings(with_seed(config))}, "history": history}
    Store(run.checkpoints).commit({}, values, step=2)
    for given in (config, with_seed(config)):
        assert newest_of_this_purpose(given, []) is None
        assert newest_of_this_purpose(given, ["seed"]) == run
        found = changed_under_way(given, [])
        assert found == (run, ["run.changed_at_step(name=seed, was=0, step=1, now=7)"])
        assert changed_under_way(given, ["seed"]) is None
