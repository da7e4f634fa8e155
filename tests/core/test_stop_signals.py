"""SIGHUP asks to stop, unless somebody has had it ignored."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infrastructure.core.stop_signals import StopSignal, stop_signals

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "from infrastructure.core.stop_signals import stop_signals; print(*stop_signals())"


def test_a_closed_terminal_is_a_stop_signal() -> None:
    assert {*stop_signals()} == {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def test_under_nohup_it_does_not() -> None:
    done = subprocess.run(
        ["nohup", sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["2", "15"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SIGHUP", "its terminal was closed (SIGHUP)"),
        ("SIGINT", "interrupted"),
        ("SIGTERM", "ended from outside (SIGTERM)"),
        ("SIGUSR1", "ended from outside (SIGUSR1)"),
    ],
)
def test_a_stop_is_an_interrupt_that_knows_its_signal(name: str, message: str) -> None:
    error = StopSignal(signal.Signals[name])
    assert (error.name, str(error)) == (name, message)
    assert isinstance(error, KeyboardInterrupt)


def test_helpers_leave_it_to_their_parent() -> None:
    code = (
        "import os, signal\nfrom infrastructure.core.stop_signals import ignore_stop_signals\n"
        "ignore_stop_signals()\n"
        "for number in (1, 2, 15):\n    os.kill(os.getpid(), number)\nprint('lives')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == b"lives\n"
