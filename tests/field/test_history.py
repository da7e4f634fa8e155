"""D6, D9, D10: a run that was changed under way, measured on other rows, or copied, says so."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.backup.backends import open_place
from infrastructure.backup.format.lineage import Lineage
from infrastructure.backup.format.retention import Retention, versions_to_keep
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.status import read_status
from infrastructure.backup.replication.upload import fetch_version
from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.load import load_config
from infrastructure.core.errors import CheckpointError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.deployment.export import EXPORT_FILE, export_model
from infrastructure.deployment.export_request import ExportRequest
from infrastructure.deployment.method_training import _Measured
from infrastructure.deployment.one_call import train as train_from_python
from infrastructure.run.checkpoint_paths import best_of, by_step, step_of
from infrastructure.run.configuration_judge import names as known_names
from infrastructure.run.directory import RunDirectory
from infrastructure.run.find import changed_under_way
from infrastructure.run.history import history_of
from infrastructure.run.restore import run_at_place
from infrastructure.training.core.state import TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.methods.check import setting_names
from infrastructure.training.observers.early_stopping import EarlyStopping
from tests.backup.memory_place import RUN, MemoryPlace, save
from tests.backup.replication.test_copier import Rig
from tests.deployment.runs import runs_of, write_settings
from tests.slow import slow
from tests.training.hf_bridge import tiny_trainer
from tests.training.hf_bridge.tiny_trainer import Rows
from tests.training.hf_bridge.tiny_trainer import train as train_trainer
from tests.training.methods.method_runs import configuration, in_fork

CHANGED = ["--max-steps", "8", "--learning-rate", "1e-4"]


def record_of(run: Path, name: str = "run.json") -> dict[str, Any]:
    return dict(json.loads((run / name).read_text()))


def summary_of(run: Path) -> dict[str, Any]:
    return record_of(run, "summary.json")


def checkpoint_at(run: Path, step: int) -> Path:
    return by_step(Store(run / "checkpoints"))[step]


def train(*flags: str) -> int:
    return main(["train", *flags])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which `temper train` is the small run."""
    monkeypatch.chdir(tmp_path)
    write_settings(tmp_path)
    return tmp_path


@pytest.fixture
def changed(folder: Path) -> Path:
    """A run of three steps that was extended to eight, with another learning rate."""
    assert train("--learning-rate", "1e-3", "--max-steps", "3", "--name", "one") == ExitCode.DONE
    [run] = runs_of(folder)
    accepted = ["--accept", "max_steps,learning_rate"]
    assert main(["resume", str(run), *CHANGED, *accepted]) == ExitCode.DONE
    return run


def test_d9_a_changed_run_passes_for_none_of_its_settings(folder: Path, changed: Path) -> None:
    file = folder / ".config/training_config.yaml"
    for max_steps, rate in ((3, 1e-3), (8, 1e-4)):
        settings = {"training.max_steps": max_steps, "training.learning_rate": rate}
        found = changed_under_way(
            load_config(yaml_path=file, environment={}, keywords=settings), []
        )
        assert found is not None, settings
        assert found[0].path.resolve() == changed.resolve()
        assert len(found[1]) == 2
    assert train(*CHANGED, "--name", "three") == ExitCode.DONE
    [as_last] = [run for run in runs_of(folder) if run != changed]
    assert summary_of(as_last)["steps"] == 8
    assert "history" not in record_of(as_last)
    summary = train_from_python(
        config_file=folder / ".config/training_config.yaml", max_steps=3, learning_rate=1e-3
    )
    assert summary["steps"] == 3
    assert Path(summary["paths"]["run"]).resolve() not in (changed.resolve(), as_last.resolve())
    assert len(runs_of(folder)) == 3
    # Each of them is found again, the changed one by what changed it.
    assert train(*CHANGED) == ExitCode.DONE
    assert train(*CHANGED, "--accept", "max_steps,learning_rate") == ExitCode.DONE
    assert len(runs_of(folder)) == 3


def test_d9_what_changed_is_shown_wherever_the_run_is_shown_and_comes_with_its_version(
    changed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [entry] = record_of(changed)["history"]
    assert entry["step"] == 3
    assert {c["name"]: (c["was"], c["is"]) for c in entry["changes"]} == {
        "learning_rate": (1e-3, 1e-4),
        "max_steps": (3, 8),
    }
    assert entry["when"]
    assert entry["command"]
    assert summary_of(changed)["history"] == [entry]
    page = (changed / "report.html").read_text()
    assert "Changed during the run" in page
    capsys.readouterr()
    assert main(["list", "--json"]) == ExitCode.DONE
    [row] = json.loads(capsys.readouterr().out)["runs"]
    assert row["changed_after"] == [3]
    exported = tmp_path / "export"
    export_model(RunDirectory(changed), None, exported, ExportRequest())
    listed = record_of(exported, EXPORT_FILE)["history"]
    assert [(one["after_step"], one["name"]) for one in listed] == [
        (3, one["name"]) for one in entry["changes"]
    ]
    card = (exported / "README.md").read_text()
    assert "`learning_rate` 0.001 (steps 1 to 3), 0.0001 (steps 4 to 8)" in card
    early = tmp_path / "early"
    export_model(RunDirectory(changed), checkpoint_at(changed, 2), early, ExportRequest())
    assert record_of(early, EXPORT_FILE)["history"] == [], "before anything changed"
    card = (early / "README.md").read_text()
    assert "`learning_rate` 0.001," in card
    assert "Changed during the run" not in card
    assert history_of(RunDirectory(changed)) == [entry]
    assert history_of(RunDirectory(changed), 3) == []
    # Who goes back behind the change has not made it, in run.json neither.
    run = f"{changed}@2"
    assert main(["resume", run]) == ExitCode.DONE
    assert "history" not in summary_of(changed)
    assert not record_of(changed).get("history")


def test_d9_a_finished_run_resumes_where_a_command_accepts_more_steps(folder: Path) -> None:
    assert train("--max-steps", "2") == ExitCode.DONE
    assert train("--max-steps", "4", "--accept", "max_steps") == ExitCode.DONE
    [run] = runs_of(folder)
    assert summary_of(run)["steps"] == 4


@slow  # test_rest.py has it without the command, as F20
def test_d9_a_change_that_no_step_follows_is_not_recorded(folder: Path) -> None:
    """F20, too: the last settings are those of the steps that were trained."""
    assert train("--max-steps", "3", "--learning-rate", "1e-3") == ExitCode.DONE
    [run] = runs_of(folder)
    changed = ["--learning-rate", "1e-4", "--accept", "learning_rate"]
    assert main(["resume", str(run), *changed]) == ExitCode.DONE
    assert not record_of(run).get("history")
    assert train("--max-steps", "3", "--learning-rate", "1e-4") == ExitCode.DONE
    assert len(runs_of(folder)) == 2


def test_d9_a_killed_change_is_on_the_disk_before_its_first_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train("--max-steps", "3") == ExitCode.DONE
    [run] = runs_of(folder)
    seen: list[Any] = []

    def first_step(self: EnhancedTrainer) -> None:
        seen.append(record_of(run)["history"])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(EnhancedTrainer, "train", first_step)
        resumed = ["resume", str(run), "--max-steps", "8", "--accept", "max_steps"]
        main(resumed)
    [[entry]] = seen
    assert entry["step"] == 3
    assert main(resumed) == ExitCode.DONE
    assert len(record_of(run)["history"]) == 1, "a second try is no second change"


def test_d9_a_trainer_of_ones_own_is_not_finished_by_other_settings(tmp_path: Path) -> None:
    train_trainer(tmp_path, max_steps=4)
    train_trainer(tmp_path, max_steps=6, accept=["max_steps"])
    run = tmp_path / "runs/tiny"
    [entry] = record_of(run)["history"]
    assert (entry["step"], [c["name"] for c in entry["changes"]]) == (4, ["max_steps"])
    assert summary_of(run)["history"] == [entry]
    with pytest.raises(
        CheckpointError, match=r"run\.changed_at_step.*name=max_steps.*was=4.*step=4"
    ):
        train_trainer(tmp_path, max_steps=6)
    trainer, _, _ = train_trainer(tmp_path, max_steps=6, accept=["max_steps"])
    assert trainer.state.global_step == 6


HELD_OUT = [{"prompt": f"QXZ {n}", "completion": f"~~{n}~ %% ^^"} for n in range(8)]


def held_out_rows(folder: Path, rows: list[dict[str, str]]) -> Path:
    path = folder / "held.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def accepting(capsys: pytest.CaptureFixture[str], *words: str) -> int:
    """The command, with whatever its refusals offer to accept."""
    accepted: list[str] = []
    while True:
        capsys.readouterr()
        code = main([*words, *(["--accept", ",".join(accepted)] if accepted else [])])
        offered = re.search(r"(?:accept|names)=([\w.,]+)", capsys.readouterr().err)
        if not code or offered is None or offered[1] in accepted:
            return code
        accepted.append(offered[1])


def test_d6_before_and_after_are_of_the_same_rows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The old rows are like those of the training, so that each of their scores is better."""
    alike = [{"prompt": f"Reverse {n}", "completion": str(n)[::-1]} for n in range(200, 208)]
    flags = ["--eval-data", str(held_out_rows(folder, alike)), "--validation-interval", "1"]
    flags += ["--keep-best", "1", "--keep-checkpoints", "2", "--learning-rate", "1e-2"]
    assert train(*flags, "--max-steps", "6") == ExitCode.DONE
    [run] = runs_of(folder)
    first = record_of(run, "before.json")
    held_out_rows(folder, HELD_OUT)
    longer = ["resume", str(run), "--max-steps", "9"]
    assert accepting(capsys, *longer) == ExitCode.DONE
    resumed = summary_of(run)
    assert resumed["steps"] == 9
    assert train(*flags, "--max-steps", "1", "--new-run") == ExitCode.DONE
    [other] = [each for each in runs_of(folder) if each != run]
    of_these_rows = summary_of(other)["before"]
    assert resumed["before"]["eval_loss"] == of_these_rows["eval_loss"]
    assert resumed["before"]["eval_loss"] != first["metrics"]["eval_loss"]
    store = Store(run / "checkpoints")
    best = best_of(store)
    assert best is not None
    assert step_of(best) > 6, "earlier scores are of other rows"
    kept = versions_to_keep(store, Retention(keep_last=2, keep_best=1))
    assert all(store.read(name).step > 6 for name in kept)


def test_d6_early_stopping_begins_again_on_other_rows() -> None:
    stopping, state = EarlyStopping(patience=2), TrainingState(torch.nn.Linear(1, 1))
    state.measure_on("old")
    for loss in (1.0, 1.1):
        state.evaluation = {"eval_loss": loss}
        stopping.eval_end(state)
    again = EarlyStopping(patience=2)
    again.load_state_dict(stopping.state_dict())
    state.best_evaluation_loss = 1.0
    state.measure_on("new")
    assert (state.evaluation, state.score) == ({}, None)
    assert state.best_evaluation_loss == math.inf
    again.train_start(state)
    for loss in (5.0, 4.0, 4.5):
        state.evaluation = {"eval_loss": loss}
        again.eval_end(state)
    assert again.best == 4.0
    assert state.stop_reason is None


def test_d6_a_trainer_of_ones_own_compares_no_scores_of_other_rows(tmp_path: Path) -> None:
    evaluating: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 1}
    train_trainer(tmp_path, max_steps=4, **evaluating)
    store = Store(tmp_path / "runs/tiny/checkpoints")
    old = store.read(store.versions()[0]).measured_on
    assert old is not None
    train_on_other_rows(tmp_path, max_steps=6, accept=["max_steps", "held_out_data"], **evaluating)
    best = best_of(store)
    assert best is not None
    newest = store.read(store.versions()[0])
    assert newest.measured_on not in (None, old)
    assert store.read(best.stem).measured_on == newest.measured_on
    assert newest.values["best_evaluation_loss"] == store.read(best.stem).score


def train_on_other_rows(folder: Path, **options: Any) -> None:
    """As `train_trainer`, with other rows held out."""
    made = tiny_trainer.trainer_of

    def trainer_of(*given: Any, **more: Any) -> Any:
        trainer = made(*given, **more)
        trainer.eval_dataset = Rows(4, seed=10)
        return trainer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_trainer, "trainer_of", trainer_of)
        train_trainer(folder, **options)


def test_d6_a_method_of_trl_shows_no_before_of_other_rows(tmp_path: Path) -> None:
    state = TrainingState(torch.nn.Linear(1, 1))
    first = _Measured(RunDirectory(tmp_path), DeploymentConfig(), lambda path: None)
    first.train_start(state)
    for step, rows, loss in ((0, "old", 2.0), (4, "old", 1.0)):
        state.step, state.evaluation = step, {"eval_loss": loss}
        state.measure_on(rows)
        state.evaluation = {"eval_loss": loss}
        first.eval_end(state)
    again = _Measured(RunDirectory(tmp_path), DeploymentConfig(), lambda path: None)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    again.train_start(state)
    state.step = 8
    state.measure_on("new")
    state.evaluation = {"eval_loss": 3.0}
    again.eval_end(state)
    summary = again.summary()
    assert (summary["before"], summary["after"]) == ({}, {"eval_loss": 3.0})
    assert summary["held_out_changed_after"] == 4


def test_d10_of_two_copies_of_a_run_one_alone_is_confirmed(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    assert train("--max-steps", "3", "--name", "one") == ExitCode.DONE
    [run] = runs_of(folder)
    copy = folder / "elsewhere" / run.name
    shutil.copytree(run, copy)
    to_place = ["--backup-place", str(place), "--backup-finish-seconds", "20", "--max-steps", "5"]
    accepted = ["--accept", "max_steps,learning_rate"]
    first = ["resume", str(run), *to_place, *accepted, "--learning-rate", "1e-3"]
    other = ["resume", str(copy), *to_place, *accepted, "--learning-rate", "1e-4"]
    assert main(first) == ExitCode.DONE
    confirmed = Store(Path(run.name), open_place(str(place))).versions()
    assert confirmed
    for _ in range(2):  # the second copier knows what the first one saw
        assert main(other) == ExitCode.NOT_CONFIRMED
        assert read_status(copy / "checkpoints/backup.json").confirmed_name is None
        assert "problem" in summary_of(copy)["backup"]
        assert Store(Path(run.name), open_place(str(place))).versions() == confirmed
        other = ["resume", str(copy)]
    assert not list(copy.rglob("traceback*"))
    assert {*confirmed} <= {*Store(run / "checkpoints").versions()}


def test_d10_a_run_restored_at_an_earlier_step_is_the_newest_at_its_place(
    tmp_path: Path,
) -> None:
    """What it went back behind is no stranger's, and what it writes comes after that."""
    place = MemoryPlace()
    rig = Rig(tmp_path / "one")
    rig.place, rig.remote = place, Store(Path(RUN), place)
    rig.copier = rig.new_copier(keep_last=9)
    names = [rig.copy(step) for step in (1, 2, 3)]
    back = Rig(tmp_path / "two")
    back.place, back.remote = place, rig.remote
    fetch_version(rig.remote, names[0], back.local, lambda done, total: None)
    Lineage(back.local.root).restored(rig.remote.versions())
    back.copier = back.new_copier(keep_last=9)
    newest = back.copy(9)
    assert rig.remote.newest() == (newest, [])
    assert back.copier.status().state == "idle"
    save(rig.local, 4)
    rig.settle()
    assert rig.copier.status().state == "fenced", "it does not know the version of step 9"


def test_d10_no_wait_is_negative_whatever_the_clock_does(tmp_path: Path) -> None:
    rig, other = Rig(tmp_path / "one"), Rig(tmp_path / "two")
    other.place, other.remote = rig.place, rig.remote
    other.copier = other.new_copier()
    save(rig.local, 1)
    save(other.local, 2)
    waits = []
    for step in range(200):
        rig.clock.now += 7.0 * (step % 5)
        other.clock.now = rig.clock.now
        waits += [rig.copier.tick(), other.copier.tick()]
        rig.copier.nudge()
    assert min(waits) >= 0
    states = {each.copier.status().state for each in (rig, other)}
    assert "fenced" in states
    again = other if other.copier.status().state == "fenced" else rig
    again.copier = again.new_copier()
    again.settle()
    assert again.copier.status().state == "fenced"
    assert again.copier.status().confirmed_name is None


@slow
def test_d9_a_method_of_trl_that_was_changed_passes_for_no_other(
    saved_llama: Path, tmp_path: Path
) -> None:
    def dpo(max_steps: int, *accept: str) -> None:
        config = configuration("dpo", tmp_path, saved_llama, training={"max_steps": max_steps})
        assert in_fork(lambda: TrainingDeployment(config, say=print, accept=accept).run()) == 0

    dpo(4)
    [run] = runs_of(tmp_path)
    dpo(8, "max_steps")
    [entry] = record_of(run)["history"]
    assert (entry["step"], [c["name"] for c in entry["changes"]]) == (4, ["max_steps"])
    assert summary_of(run)["history"] == [entry]
    dpo(8, "max_steps")  # the same command finds it again
    assert [run] == runs_of(tmp_path)
    dpo(8)
    [other] = [each for each in runs_of(tmp_path) if each != run]
    assert summary_of(other)["steps"] == 8
    assert "history" not in summary_of(other)


def test_d9_a_change_of_a_trainer_s_argument_is_called_as_its_setting() -> None:
    names = setting_names()
    assert names["num_train_epochs"] == "num_epochs"
    assert names["per_device_train_batch_size"] == "batch_size"
    assert {*names.values()} <= {*known_names()}


def test_d10_of_two_that_write_at_the_same_instant_none_is_confirmed(tmp_path: Path) -> None:
    rig, other = Rig(tmp_path / "one"), Store(tmp_path / "two")
    for step in (1, 2):
        stranger = save(other, step)
    name = save(rig.local, 1)

    def written(operation: str, path: Path) -> None:
        if operation == "confirm" and path.stem == name:
            rig.place.files.files[rig.remote.manifest_path(stranger)] = other.manifest_path(
                stranger
            ).read_bytes()

    rig.place.fault = written
    rig.settle()
    assert rig.copier.status().state == "fenced"
    assert rig.copier.status().confirmed_name is None


def test_d9_and_d10_a_run_is_found_and_restored_from_its_place_as_it_is_here(
    folder: Path, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    to_place = ["--backup-place", str(place), "--backup-finish-seconds", "20"]
    assert train("--max-steps", "2", *to_place) == ExitCode.DONE
    [run] = runs_of(folder)
    longer = ["--max-steps", "4", "--accept", "max_steps"]
    assert main(["resume", str(run), *longer, *to_place]) == ExitCode.DONE
    [entry] = record_of(run)["history"]
    config = load_config(keywords={"training.max_steps": 4, "backup.place": str(place)})
    assert run_at_place(config, []) is None
    assert run_at_place(config, ["max_steps"]) == run.name
    shutil.rmtree(folder / "runs")
    assert main(["backup", "restore", run.name, "--place", str(place)]) == ExitCode.DONE
    assert record_of(run)["history"] == [entry] == history_of(RunDirectory(run))
    there = Store(Path(run.name), open_place(str(place))).versions()
    assert Lineage(run / "checkpoints").known >= {*there}


def test_d10_what_a_long_history_forgets_is_no_stranger(tmp_path: Path) -> None:
    names = [f"{sequence:012d}-ours" for sequence in range(1, 301)]
    Lineage(tmp_path).add(names)
    again = Lineage(tmp_path)
    assert len(again.known) < len(names)
    assert again.strangers(names, []) == []
    other = f"{301:012d}-other"
    assert again.strangers([*names, other], []) == [other]
