"""The project's exceptions. Wrong user input is a `ValueError`; these are the rest."""

from typing import Any

from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import Message


class Problem(Exception):  # noqa: N818 - the name of the data, of which the errors are kinds
    """An error whose text is a message of the catalogue.

    Args:
        what: the code of a message, or a text that is ready.
        about: what the words of the code refer to, by name.
    """

    def __init__(self, what: str, /, **about: Any) -> None:
        super().__init__(what)
        self.message = Message(what, about)

    def __str__(self) -> str:
        return str(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, (type(self), str(self), self.__dict__ | {"message": Message(str(self))})


def _copied(kind: type[Problem], text: str, state: dict[str, Any]) -> Problem:
    """Make an error of another process again: its words are those that it had there."""
    error = kind.__new__(kind, text)
    error.__dict__.update(state)
    return error


class InputError(Problem, ValueError):
    """What a user gave cannot be used: the message says what is wrong, where, and what to do."""


class TemperError(Problem):
    """Base of every run-time error that Temper raises itself."""


class MissingPackageError(TemperError):
    """An optional package is needed and not installed; the text names the pip line."""


class CheckpointError(TemperError):
    """A checkpoint cannot be read, or is not what its manifest says."""


class DamagedFileError(TemperError):
    """A file is not what was written to it; the text names it."""


class DataError(TemperError):
    """Training data cannot be used as it is."""


class TrainingDivergedError(TemperError):
    """The loss or the gradients are no longer finite."""


class NothingLearnedError(TemperError):
    """Many steps in a row have changed no weight, so more of them would not; the text says why."""


class PreflightError(TemperError):
    """A check before the training failed; the text names it and says what to do."""


class StorageError(TemperError):
    """A disk or a remote store refuses, is full, or does not keep what it was given."""


class NoAnswerError(StorageError):
    """A remote store does not answer, or has a fault of its own: nothing given was wrong."""


class CopyNotConfirmedError(TemperError, SystemExit):
    """A run is finished here, and its copy at the place is not confirmed; the text says why.

    A script that lets it pass ends with exit code 3, as the `temper` command does.
    """

    def __init__(self, what: str, /, **about: Any) -> None:
        super().__init__(what, **about)
        self.code = ExitCode.NOT_CONFIRMED


class DeviceFailedError(TemperError):
    """The GPU failed: this process can use it no more; what was saved before is safe."""


class ProcessLostError(TemperError):
    """Another process of the same training failed or is gone; the text names it."""


class RunFailedError(TemperError):
    """A training in another process failed; the text is what was told of it there."""


class SamplerError(TemperError):
    """No sampler answered a question."""


class MemoryLimitError(TemperError):
    """The training does not fit into the memory that it was given."""


class RestartNeededError(TemperError):
    """Packages were replaced that this process has loaded: restart the notebook's kernel."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the text alone."""
        return [f"{type(self).__name__}: {self}"]


class MissingSecretError(TemperError):
    """A token or password is nowhere to be found; the text says where it can be put."""
