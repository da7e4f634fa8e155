"""Signals that ask a process to stop, and the exit code that tells which one did.

SIGHUP comes when a terminal is closed or its connection breaks. Whoever has had it ignored (nohup)
wants the work to go on without one.
"""

import signal

EXIT_CODE_BASE = 128  # of a process that a signal has ended, as shells count


class StopSignal(KeyboardInterrupt):
    """A signal, as an interrupt that ends the work in order; `name` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(reason_of(number))
        self.name = signal.Signals(number).name


def reason_of(number: int) -> str:
    """What a run says of its stop: `SIGTERM received`."""
    return f"{signal.Signals(number).name} received"


def exit_code_of(signal_name: str) -> int:
    """130 of SIGINT, 143 of SIGTERM, 129 of SIGHUP."""
    return EXIT_CODE_BASE + signal.Signals[signal_name]


def stop_signals() -> tuple[signal.Signals, ...]:
    """Those that ask this process to stop."""
    asking = (signal.SIGINT, signal.SIGTERM)
    is_heard = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (*asking, signal.SIGHUP) if is_heard else asking


def ignore_stop_signals() -> None:
    """For a helper: its parent is who stops, and tells it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
