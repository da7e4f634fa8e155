"""The agent: exit codes, restarts, signals. Its ranks are stand-ins, which import no torch."""

import inspect
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from torch.distributed.elastic.multiprocessing import Std
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.launcher.api import LaunchConfig

from infrastructure.core.agent import SPENT_VARIABLE, AgentFolder
from infrastructure.core.errors import ProcessLostError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.launcher import launched_process
from infrastructure.core.shared_cores import THREADS_VARIABLE
from infrastructure.core.stop_signals import StopSignal
from infrastructure.training.distributed import launch, members
from infrastructure.training.distributed.checkpoint_storage import save_distributed
from infrastructure.training.distributed.launch import LOOPBACK, Agent, RankWatch, living_ranks
from tests.forks import forked_python
from tests.slow import slow
from tests.training.distributed.stand_in import PATIENCE_SECONDS, STOPPED

# Torch's agent leaves the files that ranks write to for Python to close.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

STAND_IN = "tests.training.distributed.stand_in"
KILL = f"kill={int(signal.SIGKILL)}"
GONE = "training.rank_gone(name={{}}, fate={fate})"
KILLED = GONE.format(fate="core.killed_by_signal(signal=SIGKILL)")
ENDED = GONE.format(fate="core.ended_with_exit_code(code=1, output= (temper: ends with 1))")


def named(rank: int, pid: str | int, size: int = 2) -> str:
    return f"training.rank_of_size_with_pid(rank={rank}, size={size}, pid={pid})"


def names_of_stack() -> list[inspect.FrameInfo]:
    """As `inspect.stack`, without looking for sources."""
    frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
    codes = [frame.f_code for frame in frames]
    return [
        inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None)
        for frame, code in zip(frames, codes, strict=True)
    ]


@pytest.fixture(autouse=True)
def no_sources_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's agent notes its caller by `inspect.stack`, which looks for the source of each of
    pytest's frames among thousands of modules: four seconds for each time that ranks start."""
    monkeypatch.setattr(inspect, "stack", names_of_stack)


def agent_of(folder: Path, *deeds: str, size: int = 2) -> tuple[Agent, list[str]]:
    """An agent, and all that it shows."""
    lines: list[str] = []
    show = lines.append
    return Agent([str(folder), *deeds], size, show, module=STAND_IN, show_end=show), lines


def started(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("rank-*"))


@pytest.mark.parametrize(
    ("deed", "code"),
    [
        ("end", 0),
        ("exit=2", 2),  # wrong input
        ("exit=1", 1),  # it failed
        pytest.param("exit=3", 3, marks=slow),
        pytest.param("exit=130", 130, marks=slow),  # a deadline
        (f"kill={int(signal.SIGTERM)}", 143),  # `temper stop` before a handler is there
    ],
)
def test_how_rank_0_ends_is_how_the_command_ends(deed: str, code: int, tmp_path: Path) -> None:
    agent, lines = agent_of(tmp_path, f"0@0:{deed}")
    assert agent.run() == code
    assert started(tmp_path) == ["rank-0@0", "rank-1@0"]
    assert not lines


def test_a_rank_that_dies_after_the_training_is_no_loss(tmp_path: Path) -> None:
    agent, lines = agent_of(tmp_path, "1@0:exit=1")
    assert agent.run() == ExitCode.DONE
    assert not lines


@pytest.mark.parametrize(
    ("deeds", "rank", "loss"),
    [
        pytest.param(["1@0:" + KILL, "0@0:lose"], 1, KILLED, marks=slow),
        # asked to end because of the other's death, it says that a signal has stopped it
        (["1@0:" + KILL, "0@0:wait"], 1, KILLED),
        (["0@0:" + KILL, "1@0:wait"], 0, KILLED),
        pytest.param(["1@0:exit=1", "0@0:lose"], 1, ENDED, marks=slow),
        (["1@0:exit=1", "0@0:hang"], 1, ENDED),  # asked to end before it had a handler
        (["0@0:exit=75"], 1, "rank 1 does not answer"),
    ],
)
def test_a_lost_process_is_started_again_with_one_sentence(
    deeds: list[str], rank: int, loss: str, tmp_path: Path
) -> None:
    agent, lines = agent_of(tmp_path, *deeds)
    assert agent.run() == ExitCode.DONE
    assert started(tmp_path) == ["rank-0@0", "rank-0@1", "rank-1@0", "rank-1@1"]
    loss = loss.format(named(rank, (tmp_path / f"rank-{rank}@0").read_text()))
    assert lines == [
        f"training.restarting_after_loss(loss={loss}, name=run run-of-test, attempt=1)"
    ]


@pytest.fixture
def short_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(launch, "MOST_STOPPED_SECONDS", 0.5)
    monkeypatch.setattr(launch, "MOST_SECONDS_AFTER_FIRST", 0.5)


@pytest.mark.usefixtures("short_watch")
@pytest.mark.parametrize("deeds", [["0@0:stop", "1@0:wait"], ["1@0:stop", "0@0:wait"]])
def test_a_rank_that_a_signal_has_stopped_is_lost(
    deeds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the agent notices the loss of rank 0 before rank 1 is taken for a straggler
    monkeypatch.setattr(launch, "MOST_SECONDS_AFTER_FIRST", 30.0)
    agent, lines = agent_of(tmp_path, *deeds)
    assert agent.run() == ExitCode.DONE
    assert started(tmp_path) == ["rank-0@0", "rank-0@1", "rank-1@0", "rank-1@1"]
    pid = (tmp_path / f"rank-{deeds[0][0]}@0").read_text()
    (line,) = lines
    lost = f"training.rank_gone(name={named(int(deeds[0][0]), pid)}"
    fate = "fate=training.rank_stopped_by_signal(seconds="
    assert line.startswith(f"training.restarting_after_loss(loss={lost}, {fate}")
    assert line.endswith("name=run run-of-test, attempt=1)")


@pytest.mark.usefixtures("short_watch")
@pytest.mark.parametrize("deed", ["stop", "hang"])
def test_a_rank_that_stays_after_rank_0_is_waited_for_a_while(deed: str, tmp_path: Path) -> None:
    agent, lines = agent_of(tmp_path, f"1@0:{deed}")
    began = time.monotonic()
    assert agent.run() == ExitCode.DONE
    assert time.monotonic() - began < PATIENCE_SECONDS / 2
    assert not lines


def test_what_is_lost_again_and_again_is_given_up(tmp_path: Path) -> None:
    deeds = [f"1@{attempt}:exit=1" for attempt in range(9)]
    agent, lines = agent_of(tmp_path, *deeds, *(f"0@{n}:lose" for n in range(9)))
    assert agent.run() == ExitCode.PROCESS_LOST
    assert len(lines) == 1 + launch.MOST_LOST_IN_VAIN
    assert re.match(r"training\.too_many_losses\(.*, count=4\)", lines[-1])
    assert not any(lines[-1] == line for line in lines[:-1])
    kept = (tmp_path / "run-of-test/logs/rank-1.txt").read_text().splitlines()
    assert kept == ["temper: ends with 1"] * len(lines)


@pytest.mark.parametrize(
    ("number", "arrives", "code"),
    [
        (signal.SIGINT, "SIGINT", 130),
        (signal.SIGTERM, "SIGTERM", 143),
        (signal.SIGUSR1, "SIGTERM", 143),
    ],
)
def test_a_signal_comes_to_rank_0_once_and_nothing_is_restarted(
    number: signal.Signals, arrives: str, code: int, tmp_path: Path
) -> None:
    agent, lines = agent_of(tmp_path, "0@0:wait")
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    _when(tmp_path / "ready@0", lambda: os.kill(os.getpid(), number))
    assert agent.run() == code
    assert (tmp_path / "signals").read_text() == f"{arrives}\n"
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == before
    assert lines == ([STOPPED] if arrives == "SIGTERM" else [])  # rank 0 shows the others itself


def test_a_loss_after_a_stop_begins_nothing_again(tmp_path: Path) -> None:
    agent, lines = agent_of(tmp_path, "0@0:lose", "1@0:hang")
    _when(tmp_path / "ready@0", lambda: os.kill(os.getpid(), signal.SIGTERM))
    _when(tmp_path / "asked", lambda: _kill(tmp_path / "rank-1@0"))
    assert agent.run() == ExitCode.TERMINATED
    assert started(tmp_path) == ["rank-0@0", "rank-1@0"]
    assert lines[0].startswith("training.rank_gone(name=training.rank_of_size_with_pid(rank=1,")
    assert lines[1:] == [STOPPED]


def test_a_signal_before_there_is_a_rank_ends_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _ = agent_of(tmp_path)
    monkeypatch.setattr(launch, "elastic_launch", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(StopSignal):
        agent.run()


def test_ranks_end_when_their_agent_is_killed(tmp_path: Path) -> None:
    """Rank 0 is asked to stop, and nobody trains on unseen."""
    script = (
        "from infrastructure.training.distributed.launch import Agent; import sys\n"
        f"sys.exit(Agent([{str(tmp_path)!r}, '0@0:wait'], 2, module={STAND_IN!r}).run())"
    )
    process = forked_python([sys.executable, "-c", script])
    _wait_for(tmp_path / "ready@0")
    rank_0 = psutil.Process(int((tmp_path / "rank-0@0").read_text()))
    process.kill()
    process.wait()
    psutil.wait_procs([rank_0], PATIENCE_SECONDS)
    assert (tmp_path / "signals").read_text() == "SIGTERM\n"


def test_a_rank_does_not_wait_long_for_an_agent_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While it looks for the agent's store, it hears no signal."""
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}
    for name, value in {**variables, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(members, "AGENT_TIMEOUT", timedelta(seconds=1))
    launched = launched_process()
    assert launched is not None
    with pytest.raises(ProcessLostError, match=r"training\.parent_process_gone"):
        members.by_launcher(launched)


def test_ranks_get_their_number_threads_and_input(tmp_path: Path) -> None:
    script = tmp_path / "shows.py"
    script.write_text(
        "import json, os, sys\n"
        "from pathlib import Path\n"
        "names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'OMP_NUM_THREADS', '_TEMPER_SPENT_SECONDS')\n"
        "given = {name: os.environ.get(name) for name in names}\n"
        "given['stdin'] = sys.stdin.read() if given['RANK'] == '0' else ''\n"
        "Path(sys.argv[1], given['RANK']).write_text(json.dumps(given))\n"
        "Path(os.environ['_TEMPER_AGENT'].split()[1], 'exit_code').write_text('0')\n"
    )
    before, stdin = dict(os.environ), os.fstat(0).st_ino
    sys.path.insert(0, str(tmp_path))
    try:
        agent = Agent([str(tmp_path)], 2, stdin=b"a secret", module="shows")
        assert agent.run() == ExitCode.DONE
    finally:
        sys.path.remove(str(tmp_path))
    assert os.fstat(0).st_ino == stdin
    assert dict(os.environ) | {"TORCHELASTIC_SIGNALS_TO_HANDLE": ""} == before | {
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ""
    }
    first, second = (json.loads((tmp_path / rank).read_text()) for rank in "01")
    assert (first["RANK"], first["WORLD_SIZE"], first["LOCAL_RANK"]) == ("0", "2", "0")
    assert (second["RANK"], second["stdin"], first["stdin"]) == ("1", "", "a secret")
    assert int(first["OMP_NUM_THREADS"]) >= 1
    assert first["_TEMPER_SPENT_SECONDS"] is None


def _when(path: Path, act: Callable[[], None]) -> None:
    def wait() -> None:
        _wait_for(path)
        act()

    threading.Thread(target=wait, daemon=True).start()


def _kill(path: Path) -> None:
    _wait_for(path)
    os.kill(int(path.read_text()), signal.SIGKILL)


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Launches:
    """In the place of torch's agent: what it is given, and how its ranks end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[tuple[LaunchConfig, dict[str, str], tuple[str, ...]]] = []
        monkeypatch.setattr(launch, "elastic_launch", self._launch)

    def _launch(self, config: LaunchConfig, _: str) -> Callable[..., None]:
        def start(*arguments: str) -> None:
            self.given.append((config, dict(os.environ), arguments))

        return start


@pytest.mark.parametrize(
    ("requested", "available", "threads"), [("5", 8, "5"), ("", 8, "2"), ("", 2, "1")]
)
def test_what_ranks_are_started_with(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    requested: str,
    available: int,
    threads: str,
) -> None:
    """Cores are shared unless a number of threads is given; a restart has spent some time."""
    launches = Launches(monkeypatch)
    monkeypatch.setenv(THREADS_VARIABLE, requested)
    monkeypatch.setattr(launch.torch, "get_num_threads", lambda: available)
    before = dict(os.environ)
    agent = Agent(["train", "--seed", "1"], 3, module=STAND_IN)
    agent._started = time.monotonic() - 50.0
    for attempt in range(2):
        agent._attempt(AgentFolder(tmp_path), tmp_path / str(attempt), attempt)
    assert dict(os.environ) == before
    (first, environment, arguments), (second, again, _) = launches.given
    assert arguments[-3:] == ("train", "--seed", "1")
    assert environment[THREADS_VARIABLE] == again[THREADS_VARIABLE] == threads
    assert SPENT_VARIABLE not in environment
    assert 50.0 <= float(again[SPENT_VARIABLE]) < 80.0
    assert (first.nproc_per_node, first.max_restarts, first.max_nodes) == (3, 0, 1)
    assert first.run_id != second.run_id
    assert (first.local_addr, first.signals_to_handle) == (LOOPBACK, "SIGQUIT")
    assert first.logs_specs is not None
    assert first.logs_specs._redirects == {1: Std.ALL, 2: Std.ALL}  # the terminal is rank 0's


def losing(
    monkeypatch: pytest.MonkeyPatch, versions: list[str], num_lost: int
) -> tuple[int, list[str]]:
    """How an agent ends that loses a process so often, and what it shows.

    Args:
        versions: the newest one before the first attempt, and after each.
    """
    endings = iter([launch._Ending(75, "rank 1 is gone")] * num_lost + [launch._Ending(0)])
    newest = iter(versions)
    monkeypatch.setattr(launch, "_newest_version", lambda _: next(newest))
    monkeypatch.setattr(Agent, "_attempt", lambda *_: {})
    monkeypatch.setattr(Agent, "_judged", lambda *_: next(endings))
    lines: list[str] = []
    return Agent([], 2, lines.append, show_end=lines.append).run(), lines


def test_losses_in_vain_are_those_since_the_last_version(monkeypatch: pytest.MonkeyPatch) -> None:
    restarts = [
        f"training.restarting_after_loss(loss=rank 1 is gone, name=the training, attempt={attempt})"
        for attempt in range(1, 7)
    ]
    found = losing(monkeypatch, ["", "a", "a", "a", "b", "b", "b"], 6)
    assert found == (ExitCode.DONE, restarts)
    found = losing(monkeypatch, ["", "a", "a", "a", "b", "b", "b", "b"], 7)
    given_up = "training.too_many_losses(loss=rank 1 is gone, count=4)"
    assert found == (ExitCode.PROCESS_LOST, [*restarts, given_up])


def test_the_newest_version_is_that_of_the_run(tmp_path: Path) -> None:
    folder, run = AgentFolder(tmp_path), tmp_path / "run-1"
    assert launch._newest_version(folder) == ""
    folder.note_run(run, "")
    assert launch._newest_version(folder) == ""
    for step in (1, 2):
        name = save_distributed(run / "checkpoints", {}, {"step": step}, step=step)
    assert launch._newest_version(folder) == name


def failures(**ended: tuple[int, float]) -> dict[int, ProcessFailure]:
    """By rank; each exit code, and when."""
    found = {}
    for name, (code, at) in ended.items():
        rank = int(name.removeprefix("rank"))
        failure = ProcessFailure(rank, 1000 + rank, code, "")
        failure.timestamp = int(at)
        found[rank] = failure
    return found


@pytest.mark.parametrize(
    ("exit_code", "ended", "code", "lost"),
    [
        (0, {}, 0, None),
        (1, {"rank0": (1, 5), "rank1": (-15, 6)}, 1, None),
        (1, {"rank0": (1, 5), "rank1": (-9, 3)}, 75, 1),  # it failed because of that one
        (1, {"rank0": (1, 5), "rank1": (-9, 7)}, 1, None),
        (1, {"rank0": (1, 5), "rank1": (-15, 3)}, 1, None),  # it was asked to end
        (143, {"rank0": (143, 5), "rank1": (1, 3)}, 75, 1),
        (143, {"rank0": (143, 5), "rank1": (143, 3)}, 143, None),
        (130, {"rank0": (130, 5), "rank1": (75, 3)}, 130, None),
        (75, {"rank0": (75, 5), "rank1": (1, 3), "rank2": (-11, 2)}, 75, 2),
        (75, {"rank0": (75, 5), "rank1": (1, 4), "rank2": (3, 2)}, 75, 2),
        (None, {"rank0": (4, 5)}, 4, None),
        (None, {"rank0": (-2, 5)}, 130, None),
        (None, {"rank0": (-9, 5), "rank1": (-15, 6)}, 75, 0),
        (2, {"rank0": (2, 5), "rank1": (1, 3)}, 2, None),  # wrong input is of all
    ],
)
def test_who_has_ended_first_decides_what_it_means(
    tmp_path: Path,
    exit_code: int | None,
    ended: dict[str, tuple[int, float]],
    code: int,
    lost: int | None,
) -> None:
    folder = AgentFolder(tmp_path)
    if exit_code is not None:
        folder.note_exit_code(exit_code)
    ending = Agent([], 3)._judged(folder, failures(**ended), tmp_path)
    assert ending.code == code
    assert (ending.loss is None) == (lost is None)
    assert lost is None or named(lost, 1000 + lost, size=3) in str(ending.loss)


def words_of(logs: Path, rank: int, words: str) -> None:
    """Write what a rank has said on its standard error."""
    path = logs / "some" / "attempt_0" / str(rank) / "stderr.log"
    path.parent.mkdir(parents=True)
    path.write_text(words)


@pytest.mark.parametrize(
    ("ended", "note", "words", "loss"),
    [
        ({}, None, "", "training.rank_0_no_exit_code()"),
        ({}, "rank 2 is silent", "", "rank 2 is silent"),
        ({"rank1": (75, 1), "rank2": (75, 1)}, "noted", "temper: rank 1: said", "noted"),
        ({"rank1": (75, 1), "rank2": (75, 1)}, None, "first\ntemper: rank 1: said\n", "said"),
        ({"rank1": (75, 1)}, None, "temper: said", "said"),
        ({"rank1": (75, 1)}, None, "", "training.ranks_lost_contact()"),
        ({"rank1": (-15, 1)}, None, "temper: rank 1: said", "training.rank_0_no_exit_code()"),
    ],
)
def test_a_loss_of_contact_is_reported_in_the_words_of_a_rank(
    tmp_path: Path, ended: dict[str, tuple[int, float]], note: str | None, words: str, loss: str
) -> None:
    folder = AgentFolder(tmp_path)
    if note:
        folder.note_loss(note)
    words_of(tmp_path, 1, words)
    assert Agent([], 3)._loss(folder, failures(**ended), tmp_path, None) == loss


def test_lines_are_shown_without_secrets_once_the_run_is_known(tmp_path: Path) -> None:
    """Closing lines are not masked again: rank 0 has done so."""
    shown: list[object] = []
    show = shown.append
    agent = Agent([], 2, show, show_end=show, before_line=show)
    folder, run = AgentFolder(tmp_path), tmp_path / "run-1"
    agent._show(folder, "first")
    agent._show_end(folder)  # which has none
    folder.note_run(run, "")
    agent._show(folder, "token hf_abcdefghijklmnopqrstuvwxyz012345")
    agent._show_end(folder)
    folder.note_last_lines(["two", "lines"])
    agent._show_end(folder)
    assert shown == ["first", run, "token ***", run, "two", "lines"]


@pytest.mark.parametrize(("level", "disabled"), [(logging.INFO, 50), (logging.DEBUG, 0)])
def test_logs_of_the_agent_of_torch_are_for_debugging(level: int, disabled: int) -> None:
    ours, root = logging.getLogger("temper"), logging.root.manager
    before = ours.level, root.disable
    try:
        ours.setLevel(level)
        with launch._torch_is_silent():
            assert root.disable == disabled
        assert root.disable == before[1]
    finally:
        ours.setLevel(before[0])


def test_what_other_ranks_wrote_is_kept_without_secrets(tmp_path: Path) -> None:
    run, logs = tmp_path / "run-1", tmp_path / "logs"
    (run / "logs").mkdir(parents=True)
    secret = "token hf_abcdefghijklmnopqrstuvwxyz012345\n"
    words_of(logs, 1, "x" * 2 * launch.KEPT_BYTES + "\n" + secret)
    words_of(logs, 2, "  \n")
    folder = AgentFolder(tmp_path)
    folder.note_run(run, "")
    for _ in range(2):  # of two attempts
        launch._keep_words(folder, logs, 3)
    kept = (run / "logs/rank-1.txt").read_text()
    assert kept.count("token ") == 2
    assert "hf_abc" not in kept
    assert len(kept) < 2.1 * launch.KEPT_BYTES
    assert not (run / "logs/rank-2.txt").exists()


def rank(number: int) -> "subprocess.Popen[str]":
    """A child that does nothing, and can be seen to be a rank."""
    return subprocess.Popen(["/bin/sleep", "60"], env={"RANK": str(number)}, text=True)


def stop(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)


def test_a_rank_that_outlives_rank_0_is_killed_and_named() -> None:
    first, second = rank(0), rank(1)
    try:
        time.sleep(0.1)
        watch, limit = RankWatch(2), int(launch.MOST_SECONDS_AFTER_FIRST)
        watch.look(1.0)
        for _ in range(limit):  # rank 0 lives: its time does not count
            watch.look(1.0)
        first.kill()
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)  # nothing has waited for it yet
        assert set(living_ranks()) == {1}
        for _ in range(limit):
            watch.look(1.0)
        assert (watch.reasons, second.poll()) == ({}, None)
        watch.look(1.0)
        assert second.wait(60) == -signal.SIGKILL
        assert watch.reasons == {second.pid: "training.rank_outlived_rank_0()"}
    finally:
        for process in (first, second):
            process.kill()
            process.wait()


def test_who_is_stopped_is_given_time_and_a_pause_of_all_counts_for_nobody() -> None:
    first, second = rank(0), rank(1)
    try:
        time.sleep(0.1)
        assert set(living_ranks()) == {0, 1}
        watch = RankWatch(2)
        limit = launch.MOST_STOPPED_SECONDS
        stop(second)
        for _ in range(int(limit)):
            watch.look(1.0)
        second.send_signal(signal.SIGCONT)
        time.sleep(0.1)
        watch.look(1.0)  # it has gone on: the time begins anew
        stop(second)
        for _ in range(int(limit)):
            watch.look(1.0)
        watch.look(limit)  # the agent was stopped itself
        assert (watch.reasons, second.poll()) == ({}, None)
        watch.look(1.0)
        assert second.wait(60) == -signal.SIGKILL
        stopped = f"training.rank_stopped_by_signal(seconds={limit + 1})"
        assert watch.reasons == {second.pid: stopped}
        assert first.poll() is None
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
