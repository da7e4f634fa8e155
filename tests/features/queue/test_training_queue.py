"""The queue: real commands and processes; it is killed with its job, and nothing is lost or done
twice."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.checksums import write_record
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.lock import Lock
from infrastructure.deployment import detached
from infrastructure.deployment.detached import DetachedTraining
from infrastructure.features.queue import training_queue
from infrastructure.features.queue.command import job_lines
from infrastructure.features.queue.training_queue import Job, JobState, TrainingQueue
from infrastructure.monitoring.records.run_owner import read_trainer
from tests.deployment.command_process import HOLD_AT, kill_job
from tests.deployment.runs import (
    losses,
    newest_step,
    runs_of,
    start_temper,
    when_saved,
    write_rows,
    write_settings,
)
from tests.forks import forked_python
from tests.slow import slow

NUM_EPOCHS = 2


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """`temper queue …` in a fork, whose jobs are forks."""
    command = [sys.executable, "-m", "tests.deployment.command_process", "queue", *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return forked_python(command, cwd=folder, **pipes)


def run_queue(folder: Path) -> tuple[int, str]:
    process = start(folder, "run")
    out, _ = process.communicate(timeout=120)
    return process.returncode, out


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's folder, where `temper train` is a small run."""
    monkeypatch.chdir(tmp_path)
    write_settings(tmp_path, num_epochs=NUM_EPOCHS)
    return tmp_path


def jobs_in(folder: Path) -> list[Job]:
    return TrainingQueue(folder / "runs").jobs()


def states(folder: Path) -> list[JobState]:
    return [job.state for job in jobs_in(folder)]


def weights(run: Path) -> str:
    return hashlib.sha256((run / "final/model.safetensors").read_bytes()).hexdigest()


def undisturbed_in(folder: Path) -> Path:
    """The run of the same training that nobody disturbs."""
    folder.mkdir()
    write_settings(folder, num_epochs=NUM_EPOCHS)
    out, err = start_temper("train", folder=folder).communicate(timeout=120)
    (run,) = runs_of(folder)
    assert (run / "final").is_dir(), out + err
    return run


def test_a_killed_queue_ends_with_the_weights_of_one_that_nobody_killed(folder: Path) -> None:
    """The queue and its job in the middle; the line even asks for a new run."""
    assert main(["queue", "add", "--new-run"]) == 0
    write_rows(folder / "gone.jsonl")
    assert main(["queue", "add", "gone.jsonl"]) == 0
    (folder / "gone.jsonl").unlink()
    assert main(["queue", "add", "--deadline", "1s", "--epochs", "1000"]) == 0
    (folder / "hold").touch()
    process = start(folder, "run")
    run = when_saved(folder, HOLD_AT, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    kill_job(run)
    assert states(folder) == ["running", "waiting", "waiting"]
    killed_at = newest_step(run)
    (folder / "hold").unlink()
    code, output = run_queue(folder)
    assert f"queue.job_resuming(number=1, run={run})" in output
    assert states(folder) == ["finished", "failed", "stopped"], output
    assert code == 1
    first, second, third = jobs_in(folder)
    assert first.run == str(run)
    assert "gone.jsonl" in str(second.reason)
    assert third.reason == "run.deadline_near()"
    assert len(runs_of(folder)) == 2  # no third one: none was begun anew, none for what failed
    undisturbed = undisturbed_in(folder / "other")
    assert HOLD_AT <= killed_at < newest_step(undisturbed)
    assert weights(run) == weights(undisturbed)
    assert losses(run) == losses(undisturbed)
    assert run_queue(folder) == (0, "queue.no_job_waits()\n")


def test_a_job_that_outlives_its_queue_is_waited_for_and_one_signal_saves_and_stops(
    folder: Path,
) -> None:
    main(["queue", "add", "--epochs", "400"])
    (folder / "hold").touch()
    process = start(folder, "run")
    run = when_saved(folder, HOLD_AT, process)
    os.kill(process.pid, signal.SIGKILL)  # of the queue alone
    process.communicate(timeout=60)
    trainer = read_trainer(run)
    process = start(folder, "run")
    assert process.stdout is not None
    lines = [process.stdout.readline(), process.stdout.readline()]
    assert lines[1] == f"queue.job_still_training(number=1, trainer={trainer})\n"
    runner = f"process {process.pid} on {os.uname().nodename}"
    with pytest.raises(ValueError, match=rf"queue\.already_running.*holder={runner}"):
        TrainingQueue(folder / "runs").run()
    with pytest.raises(ValueError, match=r"queue\.job_in_training.*number=1"):
        TrainingQueue(folder / "runs").remove([1])
    os.kill(process.pid, signal.SIGTERM)
    assert process.stdout.readline() == "queue.job_saving(number=1)\n"
    (folder / "hold").unlink()
    process.communicate(timeout=60)
    assert process.returncode == 143
    (job,) = jobs_in(folder)
    assert (job.state, job.run, job.reason) == (
        "interrupted",
        str(run),
        "ended from outside (SIGTERM)",
    )
    assert (
        json.loads((run / "summary.json").read_text())["reason"] == "ended from outside (SIGTERM)"
    )
    after = read_trainer(run)
    assert after is None or after.is_alive is False


# Without a training


def lines_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    capsys.readouterr()
    assert main(["queue", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_what_waits_is_shown_and_can_be_removed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lines_of(capsys, "list") == ["queue.is_empty()"]
    assert not (folder / "runs").exists()
    assert lines_of(capsys, "add", "rows.jsonl", "--lora", "--accept", "data") == [
        "Job 1 waits: temper train rows.jsonl --lora --accept data",
        "queue.how_to_run()",
    ]
    main(["queue", "add", "--epochs", "3", "--no-backups"])
    assert lines_of(capsys, "list") == [
        "  1  waiting                  temper train rows.jsonl --lora --accept data",
        "  2  waiting                  temper train --epochs 3 --no-backups",
    ]
    assert lines_of(capsys, "remove", "1") == [
        "Removed job 1: temper train rows.jsonl --lora --accept data"
    ]
    (facts,) = lines_of(capsys, "list", "--json")
    (job,) = json.loads(facts)["jobs"]
    assert (job["number"], job["state"], job["flags"]) == (
        *(2, "waiting"),
        {"--epochs": "3", "--no-backups": False},
    )
    lines_of(capsys, "add", "--epochs", "4")
    assert [job.number for job in jobs_in(folder)] == [2, 3]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["add", "nothing.jsonl"], "nothing.jsonl"),
        (["add", "--learning-rate", "fast"], "config.wrong_value(setting=training.learning_rate, "),
        (
            ["add", "--backup-place", "s3://me:Pa55word-of-mine@bucket"],
            "queue.line_has_secret",
        ),
        (["remove", "7"], "queue.no_such_job(number=7, numbers=none)"),
        (["remove", "seven"], "commands.value_must_be(kind=a whole number, value='seven')"),
        (["start"], "commands.unknown_command"),
    ],
)
def test_what_is_wrong_is_refused_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(["queue", *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert jobs_in(folder) == []


def test_a_damaged_file_is_named(folder: Path) -> None:
    main(["queue", "add"])
    path = folder / "runs/.queue/queue.json"
    path.write_text(path.read_text().replace("waiting", "running"))
    with pytest.raises(ValueError, match=r"queue\.unreadable.*queue\.json.*checksum"):
        jobs_in(folder)


def test_additions_at_the_same_time_are_all_kept(folder: Path) -> None:
    """Whoever adds waits for who changes the jobs."""
    main(["queue", "add"])
    lock = Lock(folder / "runs/.queue/lock")
    assert lock.take(wait=False)
    adding = [threading.Thread(target=main, args=(["queue", "add"],)) for _ in range(3)]
    for thread in adding:
        thread.start()
    assert [job.number for job in jobs_in(folder)] == [1]
    lock.release()
    for thread in adding:
        thread.join()
    assert [job.number for job in jobs_in(folder)] == [1, 2, 3, 4]


def test_what_became_of_a_job_is_shown() -> None:
    job = Job(3, "/home", "a.jsonl", {}, run="/runs/my-run", began=100.0, ended=130.0)
    assert job_lines(replace(job, state=JobState.FAILED, reason="it said nothing")) == [
        "  3  failed             30 s  temper train a.jsonl",
        "     run /runs/my-run",
        "     it said nothing",
    ]


def test_the_exit_code_of_a_queue_is_that_of_its_jobs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["queue", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"jobs": [], "run_by": None}
    started = Started(monkeypatch)
    for codes, code in [
        ([ExitCode.DONE, ExitCode.DONE], ExitCode.DONE),
        ([ExitCode.DONE, ExitCode.NOT_CONFIRMED], ExitCode.NOT_CONFIRMED),
        ([ExitCode.NOT_CONFIRMED, ExitCode.FAILED, ExitCode.DONE], ExitCode.FAILED),
        ([ExitCode.TERMINATED], ExitCode.FAILED),
    ]:
        started.codes = list(codes)
        for _ in codes:
            main(["queue", "add"])
        assert main(["queue", "run"]) == code
    capsys.readouterr()
    main(["queue", "remove", "8", "2", "--json"])
    removed = json.loads(capsys.readouterr().out)["removed"]
    assert [(job["number"], job["state"]) for job in removed] == [(8, "stopped"), (2, "finished")]
    runner = Lock(folder / "runs/.queue/runner")
    assert runner.take(wait=False)
    (folder / "runs/.queue/runner").write_text("process 7 on here")
    main(["queue", "add"])
    assert capsys.readouterr().out == "Job 8 waits: temper train\n"
    main(["queue", "list", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["run_by"] == "process 7 on here"
    assert [job["number"] for job in facts["jobs"]] == [1, 3, 4, 5, 6, 7, 8]
    main(["queue", "list"])
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "queue.is_run_by(process=process 7 on here)"
    (folder / "runs/.queue/runner").write_text("")
    assert TrainingQueue(folder / "runs").runner() == "another process"
    runner.release()


# The process of a job is only thought of: what it leaves lies in a folder.


def test_a_job_comes_back_from_the_disk_as_it_was_added() -> None:
    flags = {"--lora": True, "--epochs": "3"}
    job = Job(4, "/home", "a b.jsonl", flags, ("data", "seed"), "s.yaml", JobState.STOPPED)
    job = replace(job, run="/runs/one", reason="why", began=1.5, ended=2.5)
    assert Job.from_dict(json.loads(json.dumps(job.to_dict()))) == job
    words = "temper train 'a b.jsonl' --lora --epochs 3 --config s.yaml --accept data,seed"
    assert job.line == words


@pytest.mark.parametrize(
    ("code", "state", "reason"),
    [
        (ExitCode.DONE, JobState.FINISHED, None),
        (ExitCode.NOT_CONFIRMED, JobState.FINISHED, "queue.job_backup_not_confirmed()"),
        (ExitCode.FAILED, JobState.FAILED, "no room"),
        (ExitCode.HUNG_UP, JobState.STOPPED, "run.deadline_near()"),
        (ExitCode.INTERRUPTED, JobState.STOPPED, "run.deadline_near()"),
        (ExitCode.TERMINATED, JobState.STOPPED, "run.deadline_near()"),
        (-9, JobState.INTERRUPTED, "killed by signal 9"),
    ],
)
def test_the_exit_code_of_a_job_is_how_it_stands(
    code: int,
    state: JobState,
    reason: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DetachedTraining, "exit_code", lambda self: code)
    monkeypatch.setattr(detached, "fate", lambda _: "killed by signal 9")
    place = DetachedTraining(tmp_path)
    if state is JobState.STOPPED:
        assert training_queue._end_by_exit_code(place) == (
            state,
            "queue.job_stopped_early()",
        )
    (tmp_path / "output.txt").write_text("Preparing\ntemper: no room\n \n")
    (tmp_path / "run").write_text(str(tmp_path))
    write_record(tmp_path / "summary.json", {"status": "stopped", "reason": "run.deadline_near()"})
    assert training_queue._end_by_exit_code(place) == (state, reason)


@pytest.mark.parametrize(
    ("summary", "end"),
    [
        ({"status": "finished"}, (JobState.FINISHED, None)),
        ({"status": "failed", "error": "OSError: full"}, (JobState.FAILED, "OSError: full")),
        ({"status": "stopped", "reason": "a deadline"}, (JobState.STOPPED, "a deadline")),
        ({"status": "stopped", "reason": "ended", "signal": "SIGTERM"}, None),
        ({"status": "running"}, None),
    ],
)
def test_a_job_that_another_queue_began_ended_as_its_run_records(
    summary: dict[str, str], end: tuple[JobState, str | None] | None, tmp_path: Path
) -> None:
    place, file = DetachedTraining(tmp_path), tmp_path / "summary.json"
    write_record(file, dict(summary))
    assert training_queue._end_by_summary(place, 0.0) is None  # it has no run yet
    (tmp_path / "run").write_text(str(tmp_path))
    wrote_at = file.stat().st_mtime
    assert training_queue._end_by_summary(place, wrote_at - 1) == end
    assert training_queue._end_by_summary(place, wrote_at + 1) is None  # of a session before


class Started:
    """What the queue has started; each process ends at once, with a code."""

    def __init__(self, patch: pytest.MonkeyPatch, *codes: int) -> None:
        self.codes = list(codes)
        self.given: list[tuple[DeploymentConfig, tuple[str, ...], Path | None, Path]] = []
        patch.setattr(detached, "start", self._start)
        patch.setattr(DetachedTraining, "exit_code", lambda _: self.codes.pop(0))

    def _start(
        self, config: DeploymentConfig, accept: Any, folder: Path, run_path: Path | None
    ) -> None:
        self.given.append((config, tuple(accept), run_path, Path.cwd()))
        [job] = [one for one in jobs_in(folder.parents[2]) if str(one.number) == folder.name]
        assert (job.state, job.reason, job.ended) == (JobState.RUNNING, None, None)
        (folder / "run").write_text(f"/runs/of-{folder.name}")


def test_a_job_is_trained_as_its_line_means_where_it_was_added(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    write_rows(elsewhere / "mine.jsonl")
    (elsewhere / "s.yaml").write_text("training:\n  num_epochs: 7\n  seed: 3\n")
    queue = TrainingQueue(folder / "runs")
    monkeypatch.chdir(elsewhere)
    queue.add("mine.jsonl", {"--seed": "5"}, ["data", "seed"], "s.yaml")
    monkeypatch.chdir(folder)
    queue.add(None, {"--epochs": "4"})
    started = Started(monkeypatch, -9, ExitCode.DONE)
    monkeypatch.setattr(detached, "fate", lambda _: "killed")
    lines: list[str] = []
    first, second = queue.run(lines.append)
    line = "temper train mine.jsonl --seed 5 --config s.yaml --accept data,seed"
    assert lines == [
        f"Job 1: {line}",
        "Job 1: interrupted, killed",
        "Job 2: temper train --epochs 4",
        "Job 2: finished",
    ]
    assert (first.state, second.state) == (JobState.INTERRUPTED, JobState.FINISHED)
    assert (first.run, second.run) == ("/runs/of-1", "/runs/of-2")
    assert first.began is not None
    assert first.ended is not None
    assert first.began <= first.ended
    (config, accept, run_path, where), (other, *_) = started.given
    training = config.training
    assert (training.num_epochs, training.seed, other.training.num_epochs) == (7, 5, 4)
    assert (Path(str(config.data.path)).name, where) == ("mine.jsonl", elsewhere)
    assert (accept, run_path) == (("data", "seed"), None)
    assert queue.jobs() == [first, second]
    assert (first.reason, second.reason) == ("killed", None)

    started.codes = [ExitCode.FAILED]
    [again] = queue.run(lambda line: None)  # what is finished is not done again
    assert (again.number, again.state) == (1, JobState.FAILED)
    assert started.given[-1][1:] == (("data", "seed"), Path("/runs/of-1"), elsewhere)
    assert queue.run(lambda line: None) == []
    assert again.began is not None
    assert first.ended <= again.began <= (again.ended or 0.0)
    with pytest.raises(ValueError, match=r"queue\.no_such_job\(number=3, numbers=1, 2\)"):
        queue.remove([1, 3])
    assert queue.remove([1]) == [again]
    assert [path.name for path in queue.folder.glob("[0-9]*")] == ["2"]


def test_a_job_that_ended_while_its_queue_was_dead_is_not_trained_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, run = TrainingQueue(folder / "runs"), folder / "runs/of-1"
    job = queue.add(None, {})
    place = queue._place(job)
    place.folder.mkdir()
    run.mkdir()
    (place.folder / "run").write_text(str(run))
    started = Started(monkeypatch, ExitCode.DONE)
    write_record(run / "summary.json", {"status": "finished"})
    wrote_at = (run / "summary.json").stat().st_mtime
    queue._change(1, state=JobState.RUNNING, began=wrote_at - 5)
    [ended] = queue.run(lambda line: None)
    assert (ended.state, ended.run, started.given) == (JobState.FINISHED, str(run), [])
    queue._change(1, state=JobState.RUNNING, began=wrote_at + 5)  # that was the session before
    queue.run(lambda line: None)
    assert [run_path for _, _, run_path, _ in started.given] == [run]


@slow
def test_jobs_are_processes_of_their_own(folder: Path) -> None:
    """As in the first test, without forks: what a person types."""
    main(["queue", "add"])
    main(["queue", "add", "--seed", "1", "--new-run"])
    process = start_temper("queue", "run", folder=folder)
    run = when_saved(folder, 2, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    kill_job(run)
    process = start_temper("queue", "run", folder=folder)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, states(folder)) == (0, ["finished", "finished"]), out + err
    undisturbed = undisturbed_in(folder / "other")
    assert weights(run) == weights(undisturbed)
