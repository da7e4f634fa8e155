"""A fork is a process of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import pytest

from infrastructure.core.helper_process import worker_pool
from tests import forks
from tests.forks import Forked, forked_python, main_in_fork, outcome_of_forked, run_forked

SCRIPT = """
import os, sys
print(sys.argv, os.getcwd(), os.environ.get("TOLD"), sys.stdin.readline().strip())
print("sighs", file=sys.stderr)
sys.exit(7)
"""


def echo() -> None:
    print(sys.stdin.read())


def test_it_has_its_own_arguments_folder_environment_and_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEFT", "behind")
    process = forked_python(
        [sys.executable, "-c", SCRIPT, "one"],
        **{"cwd": tmp_path, "env": {"TOLD": "so"}, "text": True},
        **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
    )
    out, err = process.communicate("heard\n")
    assert out == f"['-c', 'one'] {tmp_path} so heard\n"
    assert (err, process.returncode) == ("sighs\n", 7)
    assert (os.environ["LEFT"], Path.cwd() == tmp_path) == ("behind", False)


def test_without_a_folder_of_its_own_it_is_where_its_parent_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_forked([sys.executable, "-c", "import os; print(os.getcwd())"], text=True)
    assert done.stdout == f"{tmp_path}\n"


def test_what_a_test_has_changed_is_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what another fork has."""
    monkeypatch.setattr(forks, "UNFLUSHED", 5)
    script = "import tests.forks as f; print(f.UNFLUSHED); f.UNFLUSHED = 7"
    for _ in range(2):
        assert run_forked([sys.executable, "-c", script], text=True).stdout == "120\n"


def test_an_exception_is_reported_and_is_exit_code_1() -> None:
    done = outcome_of_forked([sys.executable, "-c", "1 / 0"], text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    with pytest.raises(subprocess.CalledProcessError):
        run_forked([sys.executable, "-c", "import sys; sys.exit('no')"])


def test_it_dies_of_a_signal() -> None:
    with Forked(signal.pause) as process:
        process.terminate()
    assert process.returncode == -signal.SIGTERM


def test_nothing_stays_open_between_it_and_its_parent() -> None:
    """Its input ends when the parent closes it, and its output with it."""
    with Forked(echo, stdin=-1, stdout=-1, text=True) as process:
        assert process.communicate("all of it")[0] == "all of it\n"


def test_descriptors_come_with_it_under_their_numbers() -> None:
    pipes = [os.pipe(), os.pipe()]
    ends = [end for _, end in pipes]
    script = "import os, sys; [os.write(int(word), word.encode()) for word in sys.argv[1:]]"
    command = [sys.executable, "-c", script, *map(str, ends)]
    with forked_python(command, pass_fds=ends) as process:
        assert process.wait() == 0
    for number, (ours, its) in zip(ends, pipes, strict=True):
        os.close(its)
        assert os.read(ours, 99) == str(number).encode()
        assert os.read(ours, 99) == b""  # nobody has it open any more
        os.close(ours)


def test_output_that_nobody_takes_is_an_exit_code() -> None:
    with Path("/dev/full").open("wb") as full, Forked(partial(print, "lost"), stdout=full) as it:
        pass
    assert it.returncode == 120


def test_its_session_is_its_own_before_anybody_can_signal_it() -> None:
    with Forked(signal.pause, start_new_session=True) as process:
        assert os.getpgid(process.pid) == process.pid
        os.killpg(process.pid, signal.SIGKILL)


def test_the_main_of_a_module_prints(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        main_in_fork("tests.faults.races", "--no-such-flag")
    assert failed.value.returncode == 2
    assert "--no-such-flag" in capfd.readouterr().err


def test_what_others_have_open_it_has_not() -> None:
    """Else a terminal or a pipe would not close when its owner closes it."""
    reading, writing = os.pipe()
    with Forked(signal.pause) as process:
        os.close(writing)
        assert os.read(reading, 1) == b""
        process.kill()
    os.close(reading)


def test_how_it_ended_is_known_whether_one_waits_or_looks() -> None:
    with Forked(partial(sys.exit, 3)) as process:
        while process.poll() is None:
            time.sleep(0.01)
        assert (process.poll(), process.wait(), process.returncode) == (3, 3, 3)
    with Forked(signal.pause) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        process.kill()
    assert process.returncode == -signal.SIGKILL


@pytest.fixture
def pool(spawned_by_fork: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessPoolExecutor]:
    monkeypatch.setattr(forks, "UNFLUSHED", 5)
    with worker_pool(1, len, ("nothing",)) as processes:
        yield processes


def changed_here() -> tuple[int, int, list[str]]:
    return os.getppid(), forks.UNFLUSHED, sys.argv


def test_a_pool_of_forks_has_what_its_parent_has(pool: ProcessPoolExecutor) -> None:
    parent, changed, arguments = pool.submit(changed_here).result()
    assert (parent, changed) == (os.getpid(), 5)
    assert arguments == sys.argv


def test_a_pool_of_forks_holds_no_end_of_a_pipe_open(pool: ProcessPoolExecutor) -> None:
    ours, its = os.pipe()
    pool.submit(changed_here).result()
    os.close(its)
    with Path(f"/dev/fd/{ours}").open("rb", buffering=0) as pipe:
        os.set_blocking(pipe.fileno(), False)
        assert pipe.read() == b""
    os.close(ours)


def test_a_pool_of_forks_notices_a_death(pool: ProcessPoolExecutor) -> None:
    with pytest.raises(BrokenProcessPool):
        pool.submit(os._exit, 1).result()
