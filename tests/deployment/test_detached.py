"""Trainings that outlive who started them: real commands, real processes, real signals."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from infrastructure.commands.train import detach
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.fingerprint import result_settings
from infrastructure.config.merging.precedence import GivenValue, Layer, Source
from infrastructure.config.sources.flags import as_flag
from infrastructure.config.sources.spelling import as_keyword, speaking
from infrastructure.core.errors import RunFailedError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.deployment import detached
from infrastructure.deployment.detached import DetachedTraining
from infrastructure.monitoring.logging_config import OUTPUT_FILE
from infrastructure.monitoring.records.run_owner import (
    read_trainer,
    this_process,
    write_trainer,
)
from tests.deployment.runs import (
    deploy,
    detached_trainings_are_forks,
    losses,
    runs_of,
    small_config,
    start_temper,
    write_settings,
)
from tests.monitoring.written_run import add, step_record, write_run
from tests.slow import slow


def temper(*arguments: str, folder: Path) -> tuple[int, str]:
    process = start_temper(*arguments, folder=folder)
    out, err = process.communicate(timeout=120)
    return process.returncode, out + err


def test_a_detached_training_goes_on_by_itself_until_it_is_stopped(tmp_path: Path) -> None:
    write_settings(tmp_path, num_epochs=4000)
    code, output = temper("train", "--detach", folder=tmp_path)
    (run,) = runs_of(tmp_path)
    trainer = read_trainer(run)
    assert trainer is not None
    assert (code, trainer.is_alive) == (0, True)
    assert "deployment.model_line(" in output  # what it said until it had a run
    trains = output[output.index("commands.detached_run_trains(") :]
    assert run.name in trains
    assert str(trainer) in trains
    assert os.getsid(trainer.pid) == trainer.pid  # no terminal's end and no Ctrl-C reaches it
    while trainer.is_alive and not list(run.rglob("metrics.jsonl")):
        time.sleep(0.05)  # stopped before it trains, it would leave no run
    code, output = temper("stop", folder=tmp_path)
    assert code == 0
    assert f"deployment.stopped_with_checkpoint(run={run.name}, " in output
    ended = read_trainer(run)
    assert ended is None or ended.is_alive is False
    code, output = temper("stop", folder=tmp_path)
    assert (code, "deployment.run_not_training" in output) == (0, True)
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["reason"]) == ("stopped", "core.stopped_by_command()")
    output = (run / OUTPUT_FILE).read_text()
    stopped = f"deployment.stopped_at_step(step={summary['steps']}, "
    assert output.index("deployment.model_line(") < output.index(stopped)
    assert list((tmp_path / "runs" / ".detached").glob("*/output.txt")) == []


@slow
def test_it_trains_to_the_same_numbers_as_in_the_foreground(tmp_path: Path) -> None:
    foreground, background = tmp_path / "a", tmp_path / "b"
    for folder in (foreground, background):
        folder.mkdir()
    here, _ = deploy(small_config(foreground, num_epochs=1))
    training = detached.start(small_config(background, num_epochs=1))
    lines: list[str] = []
    run = detached.follow(training, lines.append)
    assert training.exit_code() == 0
    assert not training.was_finished_before
    assert losses(run) == losses(here)
    assert "run.files_head(" in (run / OUTPUT_FILE).read_text()
    # the same once more: it is finished, which is said, and changes nothing
    files = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    again = detached.start(small_config(background, num_epochs=1))
    assert detached.follow(again, lines.append) == run
    assert again.exit_code() == 0
    assert again.was_finished_before
    assert any("deployment.run_finished_before" in line for line in lines)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == files


def test_what_cannot_be_trained_is_reported_with_the_exit_code_of_the_command(
    tmp_path: Path,
) -> None:
    write_settings(tmp_path)
    code, output = temper("train", "nothing.jsonl", "--detach", folder=tmp_path)
    assert code == 2
    assert "nothing.jsonl" in output
    assert "Traceback" not in output


def test_a_configuration_arrives_whole_with_its_origins_and_no_secret_lies_on_the_disk(
    tmp_path: Path,
) -> None:
    place = GivenValue(
        "backup.place", "s3://me:Pa55word-of-mine@bucket", Source(Layer.KEYWORD, "me")
    )
    config = small_config(tmp_path).changed([place])
    config.enable_backups = False
    config.data.path = str(tmp_path / "nothing.jsonl")
    arrived = DeploymentConfig.from_dict(json.loads(json.dumps(detached._as_it_stands(config))))
    for key in config.present_keys():
        assert arrived.value(key) == config.value(key), key
        assert arrived.source(key) == config.source(key), key
    with detached_trainings_are_forks():
        training = detached.start(config)
    with pytest.raises(RunFailedError, match=r"deployment\.ended_before_training.*nothing\.jsonl"):
        detached.follow(training, lambda line: None)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 2
    assert not any(b"Pa55word-of-mine" in path.read_bytes() for path in written)


def prepare(folder: Path, config: DeploymentConfig, pid: int) -> DetachedTraining:
    """What `start` leaves before the process has said anything."""
    training = DetachedTraining(folder / ".detached" / "1")
    training.folder.mkdir(parents=True)
    (training.folder / "purpose.json").write_text(json.dumps(result_settings(config)))
    write_trainer(training.folder, pid)
    return training


def test_a_training_that_is_prepared_is_known_by_what_it_trains(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    training = prepare(tmp_path / "runs", config, os.getpid())
    assert detached.preparing_the_same(config) == training
    with pytest.raises(ValueError, match=f"same_run_being_prepared.*process {os.getpid()} "):
        detach(config)
    assert detached.preparing_the_same(small_config(tmp_path, learning_rate=0.5)) is None
    (training.folder / "run").write_text("somewhere")
    assert detached.preparing_the_same(config) is None  # its run tells of itself now


def test_a_training_that_is_prepared_is_stopped_without_a_trace(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        training = prepare(tmp_path / "runs", small_config(tmp_path), process.pid)
        lines: list[str] = []
        assert detached.preparing(tmp_path / "runs") == [training]
        assert detached.stop(training, lines.append)
        assert lines == ["deployment.stopped_before_training()"]
    assert process.returncode == -signal.SIGTERM
    assert detached.preparing(tmp_path / "runs") == []


def test_what_is_trained_elsewhere_is_not_stopped_from_here(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (run / "trained_by").write_text("process 1 on another-machine\n")
    with pytest.raises(
        ValueError, match=r"deployment\.run_trained_elsewhere.*process 1 on another-machine"
    ):
        detached.stop(run)


def test_what_a_process_that_was_stopped_has_left_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, lines = write_run(tmp_path), list[str]()
    write_trainer(run, os.getpid())
    announced: list[tuple[Path, int]] = []
    monkeypatch.setattr(detached, "announce_stop", lambda path, pid: announced.append((path, pid)))
    monkeypatch.setattr(detached, "_end", lambda *_: True)
    assert detached.stop(run, lines.append)
    assert lines.pop().startswith("deployment.stopped_without_checkpoint(process=process ")
    assert announced == [(run, os.getpid())], "for whoever asks how it ended"
    newest = SimpleNamespace(newest=lambda: SimpleNamespace(step=7))
    monkeypatch.setattr(detached, "SavedSteps", lambda path: newest)
    assert detached.stop(run, lines.append)
    assert lines == [f"deployment.stopped_with_checkpoint(run={run.name}, step=7, path={run})"]
    assert len(announced) == 1


def test_a_process_of_another_user_is_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(pid: int, number: int) -> None:
        assert number == signal.SIGTERM
        raise error

    run = write_run(tmp_path)
    write_trainer(run, os.getpid())
    monkeypatch.setattr(detached.os, "kill", kill)
    error: OSError = PermissionError()
    with pytest.raises(ValueError, match=r"deployment\.process_of_another_user\(process=process "):
        detached.stop(run, patience_seconds=0)
    error = ProcessLookupError()  # it has just ended by itself
    assert detached.end(DetachedTraining(run), patience_seconds=0)


def test_the_hints_for_watching_name_the_run_and_its_output(tmp_path: Path) -> None:
    assert detached.how_to_look_on(tmp_path) == [
        f"deployment.watch_command(path={tmp_path})",
        f"deployment.stop_command(path={tmp_path})",
        f"deployment.output_file(path={tmp_path / OUTPUT_FILE})",
    ]


def test_a_training_that_does_not_stop_in_time_is_reported_as_going_on(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True);"
    command = [sys.executable, "-c", f"{deaf} time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        run, lines = write_run(tmp_path), list[str]()
        write_trainer(run, process.pid)
        assert not detached.stop(run, lines.append, patience_seconds=0.3)
        trainer = read_trainer(run)
        assert lines == [f"deployment.run_still_saving(run={run.name}, process={trainer})"]
        process.kill()


def test_starting_and_stopping_load_no_torch() -> None:
    probe = "import sys, infrastructure.commands.stop; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_who_waits_sees_the_step(tmp_path: Path) -> None:
    training = DetachedTraining(tmp_path)
    progress = detached._Progress(training)
    assert progress.words() == "deployment.detached_progress(steps=)"
    run = write_run(tmp_path / "runs")
    add(run, step_record(12))
    (tmp_path / detached.RUN_NAME).write_text(str(run))
    assert progress.words().startswith("deployment.detached_progress(steps=, step 12 of 40")
    progress.close()


# Without a process


class Ended:
    """A process of this one that has ended."""

    def __init__(self, code: int) -> None:
        self.code = code

    def wait(self) -> int:
        return self.code

    def fate(self) -> str:
        return f"code {self.code}"


def test_how_a_process_ended_is_known_to_who_has_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = DetachedTraining(tmp_path / "own"), DetachedTraining(tmp_path / "other")
    monkeypatch.setattr(detached, "_STARTED", {own.folder: Ended(-9)})
    assert (own.exit_code(), detached.fate(own)) == (-9, "code -9")
    assert (other.exit_code(), detached.fate(other)) == (ExitCode.FAILED, None)


def test_the_last_line_is_of_the_process_or_of_its_run(tmp_path: Path) -> None:
    training, run = DetachedTraining(tmp_path / "place"), tmp_path / "run"
    training.folder.mkdir()
    nothing = detached.last_line(training)
    secret = "hf_" + "aB3" * 12
    (training.folder / "run").write_text(str(run))
    (run / OUTPUT_FILE).parent.mkdir(parents=True)
    (run / OUTPUT_FILE).write_text("a line\n" * 2000 + f"temper: of the run {secret}\n\n \n")
    assert detached.last_line(training) == "of the run ***"
    (training.folder / "output.txt").write_bytes(b"\xff one\ntemper: two\n")
    assert detached.last_line(training) == "two"
    (training.folder / "output.txt").write_text(" \n")
    assert detached.last_line(training) == "of the run ***"
    assert nothing not in ("", "two", "of the run ***")


def test_what_is_begun_is_handed_over_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what earlier processes have left is taken away, that of living ones aside."""
    sent = io.BytesIO()
    started: list[tuple[tuple[str, ...], dict[str, object]]] = []

    def helper(*arguments: str, **options: object) -> object:
        started.append((arguments, options))
        pipe = SimpleNamespace(write=sent.write)
        pipe_of = contextlib.nullcontext(pipe)
        return SimpleNamespace(pid=os.getpid(), stdin=pipe_of, wait=lambda: 0)

    monkeypatch.setattr(detached, "HelperProcess", helper)
    config = small_config(tmp_path)
    config.note_environment(["of the environment"])
    living = prepare(tmp_path / "runs", config, os.getpid())
    dead = DetachedTraining(tmp_path / "runs/.detached/2")
    dead.folder.mkdir()
    observer = "module:name", {"folder": "a", "number": 3}
    training = detached.start(config, ["data", "seed"], None, tmp_path / "run", observer)
    message = json.loads(sent.getvalue())
    assert message["accept"] == ["data", "seed"]
    assert (message["run"], message["observer"]) == (str(tmp_path / "run"), [*observer])
    assert message["environment_notes"] == ["of the environment"]
    arrived = DeploymentConfig.from_dict(message["configuration"])
    assert arrived.model_dump() == config.model_dump()
    [(arguments, options)] = started
    assert arguments == ("infrastructure", "train-detached", str(training.folder))
    assert options["environment"] == {"PYTHONUNBUFFERED": "1"}
    assert (living.folder.is_dir(), dead.folder.exists()) == (True, False)
    assert training.folder.parent == living.folder.parent
    assert training.is_alive
    assert detached.preparing_the_same(config) in (living, training)

    given = tmp_path / "given"
    given.mkdir()
    sent.truncate(sent.seek(0))
    dead.folder.mkdir()
    assert detached.start(config, folder=given).folder == given
    assert dead.folder.is_dir(), "a folder of a sweep's own leaves those of others alone"
    message = json.loads(sent.getvalue())
    assert (message["accept"], message["run"], message["observer"]) == ([], None, None)
    for speak, is_python in ((as_keyword, True), (as_flag, False)):
        sent.truncate(sent.seek(0))
        with speaking(speak):
            detached.start(config, folder=given)
        assert json.loads(sent.getvalue())["is_python"] is is_python


def test_output_is_followed_until_the_run_is_known(tmp_path: Path) -> None:
    training = DetachedTraining(tmp_path)
    lines: list[str] = []
    waits: list[float] = []
    output = tmp_path / detached.OUTPUT_NAME

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        with output.open("a") as file:
            file.write("cond\nthird" if len(waits) == 1 else "\nlast")
        if len(waits) == 2:
            (tmp_path / detached.RUN_NAME).write_text(str(tmp_path / "run"))

    output.write_text("first\nse")
    write_trainer(tmp_path, os.getpid())
    assert detached.follow(training, lines.append, sleep) == tmp_path / "run"
    assert lines == ["first", "second", "third", "last"]
    assert waits == [detached.LOOK_SECONDS] * 2


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("1\ntemper: 2\n3\n4\n", "2 3 4"),
        ("temper: one", "one"),
        ("", "deployment.printed_nothing()"),
        (None, "deployment.printed_nothing()"),
    ],
)
def test_a_process_that_ends_before_its_run_is_named_with_its_last_lines(
    output: str | None, reason: str, tmp_path: Path
) -> None:
    if output is not None:
        (tmp_path / detached.OUTPUT_NAME).write_text(output)
    with pytest.raises(RunFailedError) as caught:
        detached.follow(DetachedTraining(tmp_path), lambda line: None)
    assert str(caught.value) == f"deployment.ended_before_training(reason={reason})"


def test_a_preparing_process_that_trains_by_now_is_stopped_as_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[tuple[Path, float]] = []

    def end(folder: Path, trainer: object, patience: float) -> bool:
        ended.append((folder, patience))
        (training.folder / detached.RUN_NAME).write_text(str(run))
        return True

    training = prepare(tmp_path / "runs", small_config(tmp_path), os.getpid())
    run, lines = write_run(tmp_path), list[str]()
    monkeypatch.setattr(detached, "_end", end)
    assert detached.stop(training, lines.append, 7.0)
    assert ended == [(training.folder, 7.0), (run, 7.0)]
    assert [line.partition("(")[0] for line in lines] == ["deployment.stopped_without_checkpoint"]


def test_a_process_with_the_number_of_another_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run may go on in a process of its own by then."""
    sent: list[tuple[int, int]] = []
    announced: list[tuple[Path, int]] = []

    def kill(pid: int, number: int) -> None:
        sent.append((pid, number))
        write_trainer(tmp_path, os.getppid())

    write_trainer(tmp_path, os.getpid())
    monkeypatch.setattr(detached.os, "kill", kill)
    monkeypatch.setattr(detached, "announce_stop", lambda *given: announced.append(given))
    assert detached.end(DetachedTraining(tmp_path), 5.0)
    assert sent == [(os.getpid(), signal.SIGTERM)]
    assert announced == [(tmp_path, os.getpid())]
    assert detached.end(DetachedTraining(tmp_path / "nothing"))
    assert len(sent) == 1


def test_one_process_alone_starts_several_runs(tmp_path: Path) -> None:
    path, about = tmp_path / "lock", {"folder": "a-sweep"}
    code = "sweep.already_running"
    with detached.only_runner(path, code, **about):
        assert path.read_text() == this_process()
        with (
            pytest.raises(ValueError, match=re.escape(f"{code}(holder={this_process()}")),
            detached.only_runner(path, code, **about),
        ):
            pass
        path.write_text("")
        with (
            pytest.raises(ValueError, match=r"holder=another process, folder=a-sweep\)"),
            detached.only_runner(path, code, **about),
        ):
            pass
    with detached.only_runner(path, code, **about):
        pass
