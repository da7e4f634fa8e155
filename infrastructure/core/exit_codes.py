"""The exit codes of processes. docs/when-the-machine-goes-away.md describes them for users."""

import signal
from enum import IntEnum

OF_SIGNALS = 128  # added to the number of the signal that ended a process, as shells count


class ExitCode(IntEnum):
    """Every exit code of `temper`, and of the processes that it starts."""

    DONE = 0  # and the backup, if any, is confirmed
    FAILED = 1  # or damage was found
    WRONG_INPUT = 2  # or a run that would fail the same way again: supervisors do not restart it
    NOT_CONFIRMED = 3  # finished here, but its backup is not confirmed
    PROCESS_LOST = 75  # another process of the run is gone (EX_TEMPFAIL): it can resume
    CAN_RESUME = 75  # a script whose Trainer was stopped without a signal, such as by a deadline
    HUNG_UP = 129  # SIGHUP
    INTERRUPTED = 130  # SIGINT, or a deadline
    READER_GONE = 141  # SIGPIPE: the reader of the output is gone, as after `| head`
    TERMINATED = 143  # SIGTERM


def exit_code_of_signal(name: str) -> ExitCode:
    """Return the exit code of a process that the signal `name` stopped cleanly.

    Only SIGHUP, SIGINT and SIGTERM stop a process cleanly.
    """
    return ExitCode(OF_SIGNALS + signal.Signals[name])
