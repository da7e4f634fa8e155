"""The exceptions of the project. Wrong user input raises a `ValueError`."""

import sys
import traceback
from typing import Any

from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import Message


class Problem(Exception):  # noqa: N818 - the name of the data, of which the errors are kinds
    """Base class of errors whose text comes from the message catalogue.

    Args:
        what: the code of a message, or the text itself.
        about: the values for the placeholders of the message, by name.
    """

    def __init__(self, what: str, /, **about: Any) -> None:
        super().__init__(what)
        self.message = Message(what, about)

    def __str__(self) -> str:
        return str(self.message)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: only the text. In a notebook, `%tb` shows the traceback."""
        is_new = sys.exc_info()[1] is self  # `%tb` shows an error that nobody handles any more
        text = f"{type(self).__name__}: {self}"
        return (text if is_new else "".join(traceback.format_exception(self))).splitlines()

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, (type(self), str(self), self.__dict__ | {"message": Message(str(self))})


def _copied(kind: type[Problem], text: str, state: dict[str, Any]) -> Problem:
    """Recreate an error that another process raised, with its original text."""
    error = kind.__new__(kind, text)
    error.__dict__.update(state)
    return error


class InputError(Problem, ValueError):
    """An error for wrong user input. The message says what is wrong, where, and what to do."""


class TemperError(Problem):
    """Base class of all run-time errors that Temper itself raises."""


class MissingPackageError(TemperError):
    """An error for a missing optional package. The text has the pip command that installs it."""


class CheckpointError(TemperError):
    """An error for a checkpoint that cannot be read, or does not match its manifest."""


class DamagedFileError(TemperError):
    """An error for a file whose contents have changed since it was written. The text names the
    file.
    """


class DataError(TemperError):
    """An error for training data that cannot be used."""


class TrainingDivergedError(TemperError):
    """An error for a loss or gradients that are no longer finite."""


class NothingLearnedError(TemperError):
    """An error for many successive training steps that changed no weight. The text says why."""


class PreflightError(TemperError):
    """An error for a check that failed before the run. The text names the check and what to do."""


class StorageError(TemperError):
    """An error for a disk or a remote store that cannot be written to, is full, or loses data."""


class NoAnswerError(StorageError):
    """An error for a server that does not respond, or fails although the request was valid."""


class CopyNotConfirmedError(TemperError, SystemExit):
    """An error for a run that has finished without a confirmed backup. The text says why.

    A script that does not catch this error ends with exit code 3, as the `temper` command does.
    """

    def __init__(self, what: str, /, **about: Any) -> None:
        super().__init__(what, **about)
        self.code = ExitCode.NOT_CONFIRMED


class DeviceFailedError(TemperError):
    """An error for a GPU that this process can no longer use.

    Saved checkpoints are not affected.
    """


class ProcessLostError(TemperError):
    """An error for another process of the run that failed or is gone. The text names it."""


class RunFailedError(TemperError):
    """An error for a run that failed in another process. The text is that of the original error."""


class SamplerError(TemperError):
    """An error for an optimization problem that no quantum or classical sampler could solve."""


class MemoryLimitError(TemperError):
    """An error for a run that does not fit into its memory limit."""


class RestartNeededError(TemperError):
    """An error for packages that were replaced after loading, so that the notebook's kernel must
    restart.
    """


class RunStoppedError(TemperError):
    """An error for a run that was stopped and saved before its end. The text says how to resume."""


class MissingSecretError(TemperError):
    """An error for a token or password that was not found. The text says where to put it."""
