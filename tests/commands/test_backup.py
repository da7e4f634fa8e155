"""`temper backup …` on real runs and a real folder: what it prints, does, and refuses."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.format.store import Store
from infrastructure.backup.inventory import size_bytes_of
from infrastructure.backup.replication.status import ENDED, BackupStatus, live_status, write_status
from infrastructure.backup.run_backup import STATUS_FILE
from infrastructure.backup.state.run_files import read_run_files
from infrastructure.commands import backup as backup_command
from infrastructure.commands.main import main
from infrastructure.commands.resume import resume
from infrastructure.config.merging.precedence import GivenValue, Layer, Source
from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.errors import CheckpointError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.deployment.resuming import find_to_resume
from infrastructure.monitoring.drawing.formatting import format_bytes, format_moment, format_number
from infrastructure.monitoring.records.run_owner import (
    announce_stop,
    read_trainer,
    write_trainer,
)
from infrastructure.run.checkpoint_paths import best_of, step_of
from infrastructure.run.restore import named_run
from tests.deployment.runs import deploy, end_copiers, newest_step, runs_of, small_config
from tests.monitoring.written_run import write_run

ROOT = Path(__file__).resolve().parents[2]
Temper = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of 3 steps and its place; its copy is in `kept`."""
    folder = tmp_path_factory.mktemp("trained") / "work"
    (folder / "disk").mkdir(parents=True)
    config = small_config(folder, max_steps=3)
    config.backup.place = str(folder / "disk/temper")
    run, _ = deploy(config)
    while (
        live_status(run / "checkpoints" / STATUS_FILE).state not in ENDED
    ):  # the copier outlives the training
        time.sleep(0.02)
    # A fast copier has copied an earlier version, too.
    *earlier, newest = sorted((folder / "disk").rglob("versions/*.json"))
    for version in earlier:
        version.unlink()
    for copied in newest.parents[1].glob("objects/*/*"):
        if copied.name not in newest.read_text():
            copied.unlink()
    shutil.copytree(folder, folder.with_name("kept"))
    return folder


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where copies go: those of `run`, or else there are none yet."""
    if "run" in request.fixturenames:
        return request.getfixturevalue("run").parents[1] / "disk/temper"
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk/temper"


@pytest.fixture
def run(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run of 3 steps whose version 3 (the best) is at the place."""
    end_copiers(trained)  # of the test before
    shutil.rmtree(trained)
    shutil.copytree(trained.with_name("kept"), trained)
    monkeypatch.chdir(trained)
    return runs_of(trained)[0]


@pytest.fixture
def temper(capsys: pytest.CaptureFixture[str]) -> Temper:
    """Runs `temper backup … --json`: exit code and the object printed, and nothing besides it."""

    def call(*arguments: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = main(["backup", *arguments, "--json"])
        out = capsys.readouterr().out
        return code, json.loads(out) if out else None

    return call


def flip_a_bit(store: Path) -> None:
    path = max(
        (p for p in store.glob("objects/*/*") if p.is_file()), key=lambda p: p.stat().st_size
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_the_status_shows_what_is_safe(run: Path, place: Path, temper: Temper) -> None:
    code, output = temper("status")
    assert (code, output["run"], output["confirmed_step"], output["place"]) == (
        *(ExitCode.DONE, run.name, 3),
        str(place),
    )
    assert output["possible_loss_seconds"] >= 0
    times = [output[name] for name in ("saved_at", "compared_at", "present_at")]
    assert times == sorted(times)
    assert output["compared_by"] == "read-back"


@pytest.mark.parametrize(
    ("summary", "confirmed", "words"),
    [
        (
            "finished",
            True,
            ("commands.run_finished", "backup.destination_on_same_disk"),
        ),
        (
            "running",
            True,
            ("ended_early(ended=commands.run_was_killed(), command=commands.command_or_train_",),
        ),
        (
            "running",
            False,
            ("commands.run_was_killed()", "commands.steps_would_be_lost(steps=all steps)"),
        ),
        (
            "announced",
            True,
            ("commands.run_ended_early(ended=commands.run_was_stopped()", "from_step(step=3)"),
        ),
        (
            "stopped",
            True,
            ("commands.run_ended_early(ended=commands.run_was_stopped()", "from_step(step=3)"),
        ),
        ("failed", True, ("commands.run_ended_early(ended=commands.run_ended_with_error",)),
        ("back", True, ("commands.restored_run_not_resumed", "from_step(step=3)")),
    ],
)
def test_the_status_knows_a_killed_training_from_a_finished_one(
    run: Path,
    capsys: pytest.CaptureFixture[str],
    summary: str,
    confirmed: bool,
    words: tuple[str, ...],
) -> None:
    """`running` is what stands there until the end, or for ever after kill -9."""
    record = read_record(run / "summary.json")
    if summary == "announced":  # stopped before it could write an end
        summary = "running"
        trainer = read_trainer(run)
        assert trainer is not None
        announce_stop(run, trainer.pid)
    if summary == "back":
        summary = "running"
        back = {"place": "elsewhere", "was_killed": True}
        write_record(run / "run.json", {**read_record(run / "run.json"), "brought_back": back})
        (run / "trained_by").unlink()
    write_record(run / "summary.json", {**record, "status": summary})
    if not confirmed:
        (run / "checkpoints" / STATUS_FILE).unlink()
    capsys.readouterr()
    assert main(["backup", "status", run.name]) == ExitCode.DONE
    out = capsys.readouterr().out
    assert [word for word in words if word not in out] == []
    assert ("commands.run_finished" in out) == (summary == "finished")


def test_another_disk_keeps_what_was_saved(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("infrastructure.commands.backup.FolderPlace.caution", lambda *_: None)
    record = read_record(run / "summary.json")
    write_record(run / "summary.json", {**record, "status": "finished"})
    assert main(["backup", "status", run.name]) == ExitCode.DONE
    safe = "commands.nothing_would_be_lost()commands.as_destination_last_seen()"
    assert capsys.readouterr().out.splitlines()[-1] == safe


def test_the_status_names_a_missing_place(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = str(tmp_path / "nowhere")
    assert main(["backup", "status", run.name, "--place", nowhere]) == ExitCode.WRONG_INPUT
    out = capsys.readouterr().out
    assert f"commands.destination_folder_missing(url={nowhere})" in out
    assert "backup.destination_on_same_disk" not in out


def test_a_destination_that_was_changed_is_the_one_that_is_shown(
    run: Path, place: Path, tmp_path: Path, temper: Temper
) -> None:
    other = str(tmp_path / "other")
    assert temper("create", "--place", other)[1]["confirmed"]
    code, output = temper("status")
    assert (code, output["place"], output["confirmed_step"]) == (ExitCode.DONE, other, 3)
    places = {at for row in temper("list")[1]["versions"] for at in row["places"]}
    assert places == {"here", other}
    assert temper("status", "--place", str(place))[1]["confirmed_step"] is None


def test_the_status_names_the_other_runs_of_a_place(
    run: Path, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(place, other)
    (other / run.name).rename(other / "20260101-someone-else")
    assert main(["backup", "status", "--place", str(other)]) == ExitCode.DONE
    out = capsys.readouterr().out
    caution = next(line for line in out.splitlines() if "commands.caution_no_backup" in line)
    assert f"commands.no_backup_of_run(run_id={run.name}, url={other}" in caution
    assert "20260101-someone-else" in caution
    assert main(["backup", "status", "--place", str(place)]) == ExitCode.DONE
    assert "commands.no_backup_of_run" not in capsys.readouterr().out


def test_a_place_without_a_folder_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["backup", "list", "--place", str(tmp_path / "nowhere")]) == ExitCode.WRONG_INPUT
    assert (
        f"url={tmp_path / 'nowhere'}, reason=run.destination_folder_missing("
        in capsys.readouterr().out
    )


def test_the_status_elsewhere_shows_what_the_place_holds(
    run: Path, place: Path, temper: Temper, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another machine, or another folder, has no run; its place has."""
    elsewhere = ("--place", str(place), "--output", "elsewhere")
    facts = {"place": str(place), "runs": [{"run": run.name, "newest_step": 3}]}
    assert temper("status", *elsewhere) == (ExitCode.DONE, facts)
    assert temper("status", run.name, *elsewhere) == (ExitCode.DONE, facts)
    assert main(["backup", "status", *elsewhere]) == ExitCode.DONE
    assert capsys.readouterr().out.startswith(
        f"commands.runs_at_destination(output_dir=elsewhere, url={place})"
    )
    assert main(["backup", "status", "x", *elsewhere]) == ExitCode.WRONG_INPUT
    error = capsys.readouterr().err
    assert (
        f"run.unknown_run_at_destination(url={place}, problem=core.unknown_name(what=run, name=x,"
        in error
    )
    assert run.name in error
    assert not Path("elsewhere").exists()


def test_looking_needs_no_torch(run: Path, place: Path) -> None:
    """It takes seconds to import, in which nobody wants to wait for a list."""
    options = [str(run), "--output", str(run.parent)]
    commands = [
        ["checkpoints", "list", *options],
        *(
            ["backup", command, *options, "--place", str(place)]
            for command in ("status", "list", "verify", "prune")
        ),
    ]
    code = f"""
import sys
from infrastructure.commands.main import main
for command in {commands!r}:
    assert main(command) == {ExitCode.DONE:d}, command
    assert not {{"torch", "transformers"}} & set(sys.modules), command
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_run_without_a_place_is_shown_as_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    temper: Temper,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run, _ = deploy(small_config(tmp_path, max_steps=1))
    code, output = temper("status")
    assert (code, output["place"]) == (ExitCode.DONE, None)
    for words, named in (((), run.name), (("--output", str(run.parent)), str(run))):
        command = f"commands.command_backup_create(run={named})"
        text = f"commands.run_has_no_backup(run_id={run.name}, command={command})"
        assert temper("status", *words)[1] == {"run": run.name, "place": None, "text": text}
    assert temper("create")[0] == ExitCode.WRONG_INPUT
    assert main(["backup", "restore", run.name]) == ExitCode.WRONG_INPUT
    refusal = f"commands.run_has_no_destination(run_id={run.name}) (commands.place_restores_run())"
    assert capsys.readouterr().err == f"temper: {refusal}\n"


def test_a_copy_is_made_now_of_a_run_that_had_none(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, temper: Temper
) -> None:
    monkeypatch.chdir(tmp_path)
    made, _ = deploy(small_config(tmp_path, max_steps=1))
    code, output = temper("create", made.name, "--place", str(place))
    assert (code, output["confirmed"], output["confirmed_step"]) == (ExitCode.DONE, True, 1)
    assert Store(place / made.name).newest()[0] == Store(made / "checkpoints").newest()[0]
    code, output = temper("status", made.name)
    assert (code, output["place"], output["confirmed_step"]) == (ExitCode.DONE, str(place), 1)
    listed = temper("list", made.name)[1]["versions"]
    assert {at for row in listed for at in row["places"]} == {"here", str(place)}
    shutil.rmtree(made / "checkpoints/objects")
    assert temper("verify", made.name)[0] == ExitCode.FAILED
    assert temper("restore", made.name)[1]["step"] == 1
    assert Store(made / "checkpoints").newest()[0] is not None


def test_a_copy_that_was_made_once_does_not_hold_what_was_trained_since(
    run: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody copies any more; the file still says that all there was is confirmed."""
    store = Store(run / "checkpoints")
    newest = store.versions()[0]
    store.commit({}, store.read(newest).values, step=5)
    assert main(["backup", "status", run.name]) == ExitCode.DONE
    out = capsys.readouterr().out
    assert "backup.step_confirmed(step=3," in out
    assert "backup.step_waiting(step=5)" in out
    assert "backup.state_left" in out
    assert "commands.steps_would_be_lost" in out


def test_a_password_of_the_place_is_given_again(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was copied is told without it; to look there takes the whole address."""
    record = read_record(run / "run.json")
    record["configuration"]["values"]["backup"]["place"] = None  # it was given to `create` alone
    write_record(run / "run.json", record)
    path = run / "checkpoints" / STATUS_FILE
    status = json.loads(path.read_text())
    path.write_text(json.dumps({**status, "place": "ftp://***@host/temper"}))
    capsys.readouterr()
    assert main(["backup", "status", run.name]) == ExitCode.DONE
    assert "confirmed" in capsys.readouterr().out
    assert main(["backup", "list", run.name]) == ExitCode.WRONG_INPUT
    assert "commands.destination_password_not_stored" in capsys.readouterr().err


def test_a_copy_that_is_not_confirmed_in_time_is_a_failure(run: Path, temper: Temper) -> None:
    nowhere = str(run.parent / "not-mounted/temper")
    code, output = temper("create", "--place", nowhere, "--backup-finish-seconds", "1")
    assert (code, output["confirmed"]) == (ExitCode.NOT_CONFIRMED, False)


def test_versions_and_runs_are_listed(run: Path, place: Path, temper: Temper) -> None:
    code, output = temper("list", run.name)
    lies = {version["step"]: version["places"] for version in output["versions"]}
    assert code == ExitCode.DONE
    assert lies[3] == ["here", str(place)]
    assert lies[1] == ["here"] or str(place) in lies[1]
    assert temper("list", "--place", str(place))[1]["runs"] == [{"run": run.name, "newest_step": 3}]


def test_damage_at_the_place_is_found(run: Path, place: Path, temper: Temper) -> None:
    code, output = temper("verify", run.name)
    assert (code, output["damaged"]) == (ExitCode.DONE, 0)
    flip_a_bit(place / run.name)
    code, output = temper("verify", run.name)
    assert code == ExitCode.FAILED
    assert {row["where"] for row in output["versions"] if row["problem"]} == {str(place)}


@pytest.mark.parametrize("is_there", [False, True], ids=["no such place", "of another run"])
def test_what_was_never_copied_there_is_not_called_whole(
    run: Path, place: Path, capsys: pytest.CaptureFixture[str], is_there: bool
) -> None:
    other = place.parent / "other"
    if is_there:
        shutil.copytree(place / run.name, other / "20260101-000000-another-0000")
    shown = (
        ["commands.no_backup_of_run", "another-0000"]
        if is_there
        else ["commands.destination_folder_missing", str(other)]
    )
    for action, code in (("verify", ExitCode.FAILED), ("list", ExitCode.DONE)):
        capsys.readouterr()
        assert main(["backup", action, run.name, "--place", str(other)]) == code
        out = capsys.readouterr().out
        assert f"Run {run.name}" in out
        assert all(part in out.splitlines()[-1] for part in shown), out
    shutil.rmtree(run / "checkpoints/versions")
    capsys.readouterr()
    assert main(["backup", "verify", run.name, "--place", str(other)]) == ExitCode.WRONG_INPUT
    assert "commands.nothing_to_verify" in capsys.readouterr().err


def test_a_whole_run_comes_back_and_goes_on(run: Path, place: Path, temper: Temper) -> None:
    before = (run / "run.json").read_bytes()
    shutil.rmtree(run)
    code, output = temper("restore", run.name, "--place", str(place))
    assert (code, output["path"], output["step"]) == (ExitCode.DONE, str(run), 3)
    assert output["go_on"] is None  # it came back finished
    assert (run / "run.json").read_bytes() == before
    assert (run / "tokenizer/tokenizer.json").is_file()
    assert newest_step(run) == 3
    assert resume(run.name, str(run.parent)) == 0
    assert (run / "final/config.json").is_file()


def test_the_best_checkpoint_comes_back_and_the_copy_is_known(
    run: Path, place: Path, temper: Temper
) -> None:
    """RUN@best means the same before a machine is lost and after."""
    store = Store(run / "checkpoints")
    values = store.read(store.versions()[0]).values
    for step, score in ((7, 0.1), (8, 5.0)):
        store.commit(read_run_files(run), values, step=step, score=score)
        assert temper("create", run.name)[0] == ExitCode.DONE
    shutil.rmtree(run)
    code, output = temper("restore", run.name, "--place", str(place))
    assert (code, output["step"]) == (ExitCode.DONE, 8)
    best = best_of(store)
    assert best is not None
    assert store.read(best.stem).step == 7
    assert newest_step(run) == 8
    code, output = temper("status", run.name)
    assert (code, output["confirmed_step"]) == (ExitCode.DONE, 8)


def test_the_newest_run_is_restored_where_none_is_named(
    run: Path, place: Path, temper: Temper
) -> None:
    code, output = temper("restore", "--place", str(place), "--output", "elsewhere")
    assert (code, output["run"]) == (ExitCode.DONE, run.name)
    assert Path(output["path"]).parent.name == "elsewhere"


def test_a_finished_run_that_is_restored_has_nothing_to_go_on_with(
    run: Path, place: Path, temper: Temper, capsys: pytest.CaptureFixture[str]
) -> None:
    record = read_record(run / "summary.json")
    write_record(run / "summary.json", {**record, "status": "finished"})
    (run / "final").mkdir(exist_ok=True)
    assert temper("restore", run.name, "--place", str(place))[1]["go_on"] is None
    assert main(["backup", "restore", run.name, "--place", str(place)]) == ExitCode.DONE
    finished = f"commands.restored_run_is_finished(path={run.resolve() / 'final'})"
    assert finished in capsys.readouterr().out


def test_a_restored_run_does_not_lose_what_is_newer_here(
    run: Path, place: Path, temper: Temper
) -> None:
    (run / "metrics.jsonl").write_text("newer\n")
    assert temper("restore", run.name, "--place", str(place))[0] == ExitCode.DONE
    assert (run / "metrics.jsonl").read_text() == "newer\n"


def test_a_run_comes_back_by_whatever_it_was_called_here(
    run: Path, place: Path, temper: Temper
) -> None:
    version = Store(run / "checkpoints").manifest_path(Store(run / "checkpoints").versions()[0])
    shutil.rmtree(run.parent)
    names = ["@best", "@3", "/final", "/final@best", "/checkpoint-3", ""]
    for name in [f"{run.name}{end}" for end in names] + [str(version), f"elsewhere/{run.name}"]:
        code, output = temper("restore", name, "--place", str(place))
        assert (code, output["step"]) == (ExitCode.DONE, 3)
        folder = Path("elsewhere") if name.startswith("elsewhere") else run.parent
        assert Path(output["path"]) == (folder / run.name).resolve()
        shutil.rmtree(folder)


def test_a_run_that_is_called_comes_back_by_its_name(place: Path) -> None:
    at = FolderPlace(place)
    names = ["20260101-000000-my-run-aaaa", "20260102-000000-my-run-bbbb", "20260103-000000-a-cccc"]
    for name in names:
        Store(Path(name), at).commit({}, {}, step=1)
    assert named_run(at, "my-run") == named_run(at, "runs/my-run/final") == names[1]
    with pytest.raises(ValueError, match="what=run, name=my,"):
        named_run(at, "my")


@pytest.mark.parametrize("action", ["create", "list", "verify", "prune", "status"])
def test_an_action_on_a_whole_run_refuses_one_checkpoint(
    tmp_path: Path, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would have been left out of account."""
    place = ["--place", str(tmp_path)]
    assert main(["backup", action, "a-run@best", *place]) == ExitCode.WRONG_INPUT
    assert "monitoring.checkpoint_instead_of_run" in capsys.readouterr().err


def test_where_no_place_is_named_those_of_other_runs_are(
    run: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["backup", "restore", "lost"]) == ExitCode.WRONG_INPUT
    line = capsys.readouterr().err
    assert "commands.backup_location_unknown" in line
    assert "variable=TEMPER_BACKUP__PLACE" in line
    assert f"destinations_of_other_runs(output_dir=runs, destinations={place})" in line


@pytest.mark.parametrize("how", ["flag", "environment", "path"])
def test_a_run_that_is_not_here_is_gone_on_with_from_its_place(
    run: Path,
    place: Path,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.rmtree(run.parent)
    moved = str(place.rename(place.with_name("moved")))  # where no recorded setting leads
    if how == "environment":
        monkeypatch.setenv("TEMPER_BACKUP__PLACE", moved)
    arguments = {
        "flag": [run.name, "--backup-place", moved],
        "environment": [],
        "path": [f"elsewhere/{run.name}", "--backup-place", moved],
    }
    capsys.readouterr()
    assert main(["resume", *arguments[how]]) == ExitCode.DONE
    captured = capsys.readouterr()
    folder = "elsewhere" if how == "path" else "runs"
    shown = captured.out + captured.err
    about = f"run_id={run.name}, output_dir={folder}, url={moved}"
    coming = f"deployment.restoring_run_from_backup({about}"
    assert shown.count(coming) == 1
    assert f"deployment.run_finished_before(run_id={run.name}" in shown
    assert "--new-run" not in shown  # which `temper resume` refuses
    assert (Path(folder) / run.name / "final/config.json").is_file()
    assert not place.exists(), "copies go where the run came from"


def test_a_version_of_a_run_that_is_not_here_comes_back(run: Path, place: Path) -> None:
    at = GivenValue("backup.place", str(place), Source(Layer.FLAG, "--backup-place"))

    def find(name: str) -> tuple[Path, int]:
        shutil.rmtree(run.parent, ignore_errors=True)
        found = find_to_resume(name, "runs", [], [], lambda line: None, at)
        assert found.checkpoint is not None
        return found.run.path, step_of(found.checkpoint)

    assert find(f"{run.name}@best") == (run, 3)
    assert find(f"{run.name}@3") == (run, 3)
    back = {"place": str(place), "was_killed": False}  # it was finished
    assert read_record(run / "run.json")["brought_back"] == back
    with pytest.raises(CheckpointError, match=r"no_intact_checkpoint_of_step\(step=7,") as raised:
        find(f"{run.name}@7")
    (note,) = raised.value.__notes__
    assert note.startswith("it has: ")
    assert note.endswith("3")
    with pytest.raises(ValueError, match=r"run\.malformed_checkpoint_name"):
        find(f"{run.name}@last")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["resume", "nobody", "--backup-place", "disk/temper"],
            ["deployment.named_run_not_found", "run.unknown_run_at_destination", "RUN_ID"],
        ),
        (
            ["resume", "--backup-place", "disk/tmper"],
            [
                "deployment.no_run_to_resume",
                "run.no_run_at_destination",
                "run.destination_folder_missing",
            ],
        ),
        (["resume", "nobody"], ["name=nobody", "monitoring.hint_restore_run"]),
        (["resume"], ["monitoring.no_runs"]),
        (["backup", "status"], ["monitoring.no_runs"]),
        (["backup", "list"], ["monitoring.no_runs"]),
    ],
)
def test_where_no_run_is_the_sentence_leads_to_its_copy(
    run: Path, arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main([*arguments, "--output", "nowhere"]) == ExitCode.WRONG_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    for word in words:
        assert word.replace("RUN_ID", run.name) in line
    assert not Path("nowhere").exists()


def test_pruning_shows_before_what_it_removes(run: Path, place: Path, temper: Temper) -> None:
    record = read_record(run / "run.json")
    record["configuration"]["values"]["training"]["keep_checkpoints"] = 2
    write_record(run / "run.json", record)
    code, output = temper("prune", run.name, "--dry-run")
    gone = [row["step"] for row in output["would_remove"] if row["where"] == "here"]
    assert (code, gone) == (ExitCode.DONE, [1, 0])
    assert len(Store(run / "checkpoints").versions()) == 4
    code, output = temper("prune", run.name)
    assert code == ExitCode.DONE
    assert output["done"][0] == "backup.checkpoints_removed_here(count=2)"
    assert len(Store(run / "checkpoints").versions()) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["restore"], "commands.backup_location_unknown"),
        (["restore", "nobody", "--place", "disk/temper"], "what=run, name=nobody,"),
        (["restore", "--place", "disk"], "run.no_run_at_destination"),
        (["restore", "a@b", "--place", "disk/temper"], "run.malformed_checkpoint_name"),
        (["restore", "--place", "not-mounted/temper"], "not-mounted"),
        (["list", "--place", "not-mounted/temper"], "not-mounted"),
        (["verify", "nobody"], "what=run or checkpoint, name=nobody,"),
        (["status", "--plac"], "--place"),
        (["statsu"], "status"),
        ([], "ACTION"),
    ],
)
def test_what_goes_wrong_is_one_sentence(
    run: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["backup", *arguments]) == ExitCode.WRONG_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err.splitlines()[-1]
    assert "Traceback" not in captured.err


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[str]]]:
    """Runs `temper backup …` for people: exit code and lines, without ages that change."""

    def call(*arguments: str) -> tuple[int, list[str]]:
        capsys.readouterr()
        code = main(["backup", *arguments])
        return code, re.sub(r"age=[^,)]*", "age=…", capsys.readouterr().out).splitlines()

    return call


def table_of(lines: list[str]) -> list[list[str]]:
    heading, rule, *rows = lines
    assert {*rule} == {"─", " "}
    return [re.split("  +", row) for row in (heading, *rows)]


def confirmed(place: Path, **about: str) -> str:
    more = {"in_flight": "", "problem": "", **about}
    status = ", ".join(f"{key}={value}" for key, value in more.items())
    return f"backup.status(confirmed=backup.step_confirmed(step=3, age=…), place={place}, {status})"


SEEN = "Seen there: backup.seen_at_destination(seen_age=…, compared_age=…, method=read-back)"
INTACT = "commands.version_intact()"


def test_people_read_lines(run: Path, place: Path, lines: Any) -> None:
    store, name = Store(run / "checkpoints"), run.name
    versions = store.versions()
    size = {
        step: format_bytes(size_bytes_of(store.read(one)))
        for one, step in zip(versions, (3, 2, 1, 0), strict=True)
    }
    saved = {one: format_moment(store.read(one).created) for one in versions}
    kind = {store.read(one).step: store.read(one).kind for one in versions}
    score = format_number(store.read(versions[0]).score or 0)
    there = [f"{what} {place}: {INTACT}" for what in ("step 3", "final/", "report/")]
    here = [f"step {step} here: {INTACT}" for step in (3, 2, 1, 0)]
    total = "commands.num_intact(num_intact=7, total=7)"
    assert lines("verify", name) == (0, [f"Run {name}", *here, *there, total])
    assert lines("status", name) == (
        0,
        [
            *(f"Run {name}", confirmed(place), SEEN, "commands.run_finished()"),
            f"Caution: backup.destination_on_same_disk(url={place})",
        ],
    )
    removed = "backup.checkpoints_removed_"
    assert lines("prune", name) == (
        0,
        [f"{removed}here(count=0)", f"{removed}there(count=0, url={place})"],
    )
    assert lines("prune", name, "--dry-run") == (0, ["commands.nothing_would_be_removed()"])
    safe = f"commands.run_is_safe(run_id={name}, url={place / name / 'final'})"
    assert lines("create", name) == (0, [confirmed(place), SEEN, safe])
    code, (heading, *listed) = lines("list", name)
    assert (code, heading) == (0, f"Run {name}")
    places = f"here, {place}"
    assert table_of(listed) == [
        ["checkpoint", "kind", "saved", "score", "size", "stored"],
        [
            *("step 3", kind[3], saved[versions[0]], score, size[3]),
            places if len(places) <= 60 else f"{places[:59]}…",
        ],
        *(
            [f"step {step}", kind[step], saved[versions[3 - step]], "–", size[step], "here"]
            for step in (2, 1, 0)
        ),
    ]
    code, listed = lines("list", "--place", str(place))
    assert table_of(listed) == [
        ["run", "newest", "saved"],
        [name, "step 3", saved[versions[0]]],
    ]
    (empty := run.parents[1] / "empty").mkdir()
    nothing = f"commands.no_run_at_destination(url={empty}, reason=)"
    assert lines("list", "--place", str(empty)) == (0, [nothing])


def test_people_read_what_is_not_safe_yet(run: Path, place: Path, lines: Any) -> None:
    write_record(run / "summary.json", {**read_record(run / "summary.json"), "status": "running"})
    assert lines("create", run.name) == (0, [confirmed(place), SEEN])
    store = Store(run / "checkpoints")
    newest, second, *_ = store.versions()
    store.commit({}, store.read(newest).values, step=5)
    store.manifest_path(second).write_text("{}")
    command = f"commands.command_or_train_resume(run=runs/{run.name})"
    ended = f"ended=commands.run_was_killed(), command={command}, start=commands.from_step(step=5)"
    waits = {"in_flight": "backup.step_waiting(step=5)", "problem": "; backup.state_left()"}
    known = [f"Run {run.name}", confirmed(place, **waits), SEEN]
    lost = "commands.steps_would_be_lost(steps=steps after 3)"
    shown = [*known, f"commands.run_ended_early({ended})", lost]
    assert lines("status", run.name) == (0, shown)
    write_trainer(run)
    assert lines("status", run.name) == (0, [*known, "commands.work_would_be_lost(age=…)"])
    _, listed = lines("list", run.name)
    assert [row[0] for row in table_of(listed[1:])][1:] == [
        *("step 5", "step 3", second[:12], "step 1", "step 0")
    ]
    assert table_of(listed[1:])[3][1:] == ["damaged", "backup.manifest_changed()", "here"]
    code, shown = lines("verify", run.name)
    assert (code, shown[3]) == (1, f"{second[:12]} here: backup.manifest_changed()")
    assert shown[-1] == "commands.num_intact(num_intact=7, total=8)"
    resuming = f"commands.restored_run_command(command=temper resume {run}@3)"
    restored = f"commands.run_restored(run_id={run.name}, step=3){resuming}"
    assert lines("restore", f"{run.name}@3") == (0, [restored])


def test_what_would_be_removed_is_beyond_what_is_to_be_kept(
    run: Path,
    place: Path,
    lines: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    there = Store(Path(run.name), FolderPlace(place))
    for step in (4, 5, 6):  # of other rows, so their scores are not those of step 3
        there.commit({}, {}, step=step, score=9.0)
    removed = [f"would remove step 3 at {place}"]
    assert lines("prune", run.name, "--dry-run", "--backup-keep", "2") == (0, removed)

    def fail(*_: object) -> None:
        raise OSError("silent")

    monkeypatch.setattr(backup_command, "versions_to_keep", fail)
    assert main(["backup", "prune", run.name, "--dry-run"]) == ExitCode.WRONG_INPUT
    error = "temper: commands.store_does_not_respond(where=here, error=silent)\n"
    assert capsys.readouterr().err == error


def test_the_places_of_the_newest_runs_are_named_once(tmp_path: Path) -> None:
    for number, at in enumerate(["e", "d", "c", None, "b", "a", "b"]):
        status = write_run(tmp_path, f"2026010{number}") / "checkpoints" / STATUS_FILE
        status.parent.mkdir()
        write_status(status, BackupStatus(place=at or ""))
    assert backup_command._places_of_runs(tmp_path) == ["b", "a", "c"]


@pytest.mark.parametrize(("problem", "reason"), [("full", ": full"), (None, "")])
def test_the_problem_is_named_while_the_copy_is_awaited(problem: str | None, reason: str) -> None:
    backup: Any = SimpleNamespace(status=lambda: SimpleNamespace(problem=problem))
    waits = f"commands.waiting_for_destination(reason={reason})"
    assert backup_command._waits_for(backup) == waits
