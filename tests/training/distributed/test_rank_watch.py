"""What an agent sees of its ranks; that it ends them, and says why: test_launch.py."""

import os
import signal
import subprocess
import time

from infrastructure.training.distributed import rank_watch
from infrastructure.training.distributed.rank_watch import RankWatch, living_ranks


def rank(number: int) -> "subprocess.Popen[str]":
    """A child that does nothing, and can be seen to be a rank."""
    return subprocess.Popen(["/bin/sleep", "60"], env={"RANK": str(number)}, text=True)


def stop(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)


def test_who_is_stopped_is_given_time_and_a_pause_of_all_counts_for_nobody() -> None:
    first, second = rank(0), rank(1)
    try:
        time.sleep(0.1)
        assert set(living_ranks()) == {0, 1}
        watch = RankWatch(2)
        limit = rank_watch.MOST_STOPPED_SECONDS
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
        assert "stopped" in watch.reasons[second.pid]
        assert first.poll() is None
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
