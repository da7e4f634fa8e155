"""Interfaces for files, observers and other additions of a strategy to a run, besides its steps."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from infrastructure.core.json_text import JsonValue


class Examples(Protocol):
    """The part of a data source that a strategy reads; see `base_adapter.DataSource`."""

    @property
    def num_examples(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def train_batches(
        self, epoch: int, start_example: int, batch_size: int
    ) -> Generator[Sequence[object], None, None]: ...


@dataclass
class ExampleSource:
    """All training examples, for a strategy that stores a value for each of them.

    Attributes:
        prepare_batch: makes a batch of examples, as in training. The batch contains the examples
            under the key `EXAMPLES`.
        folder: the folder of the run, or one that runs share.
        facts: everything besides the examples that a batch depends on: precision, version of the
            labels.
    """

    data: Examples
    prepare_batch: Callable[[Sequence[Any]], dict[str, Any]]
    folder: Path
    facts: Mapping[str, JsonValue]


class RunParts:
    """Everything that a strategy adds to a run besides its steps. By default nothing is added."""

    def observers(self, folder: Path) -> list[Any]:
        """Return observers that write the strategy's own files into the run folder."""
        return []

    def save(self, folder: Path) -> list[str]:
        """Write the strategy's own outputs at the end of a run, besides the model.

        Returns:
            A sentence for each file that could not be written.
        """
        return []

    def disk_bytes(self) -> tuple[int, int]:
        """Return the bytes on disk of files that remain, and of temporary files during training."""
        return 0, 0

    def lines(self, step_seconds: float | None = None) -> list[str]:
        """Return lines of text that describe the plan of the run.

        Args:
            step_seconds: the measured time of a step. None: the lines contain no times.
        """
        return []

    def seconds_left(self, step: int, num_left: int, step_seconds: float) -> float:
        """Return the predicted seconds of the `num_left` steps after `step`.

        Args:
            step_seconds: the measured time of one step.
        """
        return num_left * step_seconds

    def growth_bytes(self, step: int, heaviest_units: int, value_bytes: int) -> int:
        """Return how much more memory later steps need than the measured step.

        Args:
            heaviest_units: the tokens of the largest micro-batch.
            value_bytes: the size of one activation value.
        """
        return 0

    def trained(self) -> str:
        """Return a description of what is trained; "" if the usual description is correct."""
        return ""
