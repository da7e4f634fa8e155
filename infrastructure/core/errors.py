"""The exceptions of the project. Wrong user input is a `ValueError`; these are the rest."""

from typing import Any

from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import Message


class Problem(Exception):  # noqa: N818 - the name of the data, of which the errors are kinds
    """An error whose text is a message of the catalogue.

    Args:
        what: the code of a message, or a finished text.
        about: the values that the message refers to, by name.
    """

    def __init__(self, what: str, /, **about: Any) -> None:
        super().__init__(what)
        self.message = Message(what, about)

    def __str__(self) -> str:
        return str(self.message)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, (type(self), str(self), self.__dict__ | {"message": Message(str(self))})


def _copied(kind: type[Problem], text: str, state: dict[str, Any]) -> Problem:
    """Recreate an error of another process, with the text that it had there."""
    error = kind.__new__(kind, text)
    error.__dict__.update(state)
    return error


class InputError(Problem, ValueError):
    """User input that cannot be used: the message says what is wrong, where, and what to do."""


class TemperError(Problem):
    """Base class of every run-time error that Temper itself raises."""


class MissingPackageError(TemperError):
    """An optional package that is needed is not installed; the text names the pip command."""


class CheckpointError(TemperError):
    """A checkpoint cannot be read, or does not match its manifest."""


class DamagedFileError(TemperError):
    """The contents of a file are not what was written to it; the text names the file."""


class DataError(TemperError):
    """Training data cannot be used as it is."""


class TrainingDivergedError(TemperError):
    """The loss or the gradients are no longer finite."""


class NothingLearnedError(TemperError):
    """Many steps in a row have changed no weight, so further steps would not; the text says why."""


class PreflightError(TemperError):
    """A check before the run failed; the text names it and says what to do."""


class StorageError(TemperError):
    """A disk or a remote store refuses to write, is full, or loses data."""


class NoAnswerError(StorageError):
    """A remote store does not respond, or has a fault of its own; the input was not wrong."""


class CopyNotConfirmedError(TemperError, SystemExit):
    """A run has finished on this machine, but its backup is not confirmed; the text says why.

    A script that does not catch it ends with exit code 3, as the `temper` command does.
    """

    def __init__(self, what: str, /, **about: Any) -> None:
        super().__init__(what, **about)
        self.code = ExitCode.NOT_CONFIRMED


class DeviceFailedError(TemperError):
    """The GPU failed, and this process can no longer use it. What was saved before is safe."""


class ProcessLostError(TemperError):
    """Another process of the same run failed or is gone; the text names it."""


class RunFailedError(TemperError):
    """A run in another process failed; the text is the error that was reported there."""


class SamplerError(TemperError):
    """No sampler solved a problem."""


class MemoryLimitError(TemperError):
    """The run does not fit into its memory limit."""


class RestartNeededError(TemperError):
    """Packages that this process has loaded were replaced: restart the notebook's kernel."""

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: only the text."""
        return [f"{type(self).__name__}: {self}"]


class MissingSecretError(TemperError):
    """A token or password was not found; the text says where to put it."""
