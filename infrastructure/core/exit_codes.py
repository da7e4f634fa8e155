"""What a process says by its exit code. For people: docs/when-the-machine-goes-away.md."""

import signal
from enum import IntEnum

OF_SIGNALS = 128  # added to the number of the signal that ended a process, as shells count


class ExitCode(IntEnum):
    """Every exit code of `temper`, and of the processes that it starts."""

    DONE = 0  # and confirmed wherever a copy was asked for
    FAILED = 1  # or damage was found
    WRONG_INPUT = 2  # or a training that would end the same again: no supervisor restarts it
    NOT_CONFIRMED = 3  # finished here, but its copy is not confirmed where it was asked for
    PROCESS_LOST = 75  # another process of the training is gone (EX_TEMPFAIL): it can go on
    HUNG_UP = 129  # SIGHUP
    INTERRUPTED = 130  # SIGINT, or a deadline
    READER_GONE = 141  # SIGPIPE: nobody reads what is printed any more, as after `| head`
    TERMINATED = 143  # SIGTERM


def exit_code_of_signal(name: str) -> ExitCode:
    """That of a process which `SIGHUP`, `SIGINT` or `SIGTERM` has stopped in order."""
    return ExitCode(OF_SIGNALS + signal.Signals[name])
