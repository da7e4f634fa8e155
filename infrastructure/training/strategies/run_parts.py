"""The additions of a strategy to a run besides its steps, and their source of examples."""

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
    """The source of all training examples, for what a strategy keeps for each of them.

    Attributes:
        prepare_batch: makes a batch of examples, as in training. It names them: `EXAMPLES`.
        folder: the folder of the run, or one that runs share.
        facts: what a batch depends on besides the examples: number format, version of the labels.
    """

    data: Examples
    prepare_batch: Callable[[Sequence[Any]], dict[str, Any]]
    folder: Path
    facts: Mapping[str, JsonValue]


class RunParts:
    """The additions of a strategy to a run besides its steps. Most add nothing."""

    def observers(self, folder: Path) -> list[Any]:
        """Return observers that record what is special about the run, in its folder."""
        return []

    def save(self, folder: Path) -> list[str]:
        """Write what the run leaves besides the model.

        Returns:
            A sentence for each file that could not be written.
        """
        return []

    def disk_bytes(self) -> tuple[int, int]:
        """Return the bytes on disk of files that remain, and of those during training only."""
        return 0, 0

    def lines(self, step_seconds: float | None = None) -> list[str]:
        """Return the plan of the run as lines of text.

        Args:
            step_seconds: the measured time of a step. None: the lines have no times.
        """
        return []

    def seconds_left(self, step: int, num_left: int, step_seconds: float) -> float:
        """Return the time of the steps after `step`, from the measured time of one."""
        return num_left * step_seconds

    def growth_bytes(self, step: int, heaviest_units: int, value_bytes: int) -> int:
        """Return by how much the memory of later steps exceeds that of the measured one.

        Args:
            heaviest_units: the tokens of the largest micro-batch.
            value_bytes: of an activation.
        """
        return 0

    def trained(self) -> str:
        """Return in words what trains, or "" if the words for other runs are right."""
        return ""
