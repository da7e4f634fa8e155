"""The contract of an export format, and the built-in format, the folder of transformers.

Others are in features and in the packages of other people; `EXPORT_FORMATS` has all of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from infrastructure.config.registries import EXPORT_FORMATS
from infrastructure.core.errors import InputError

if TYPE_CHECKING:
    import torch

SAFETENSORS = "safetensors"


class Reading(NamedTuple):
    """A written model as a library reads it, to be compared with the trained one.

    Attributes:
        by: the library that loads the files.
        logits: a function from token ids of shape (1, tokens) to fp32 logits of shape (tokens,
            vocabulary).
        prompts: the questions, encoded by the export's own tokenizer, or None if it has none.
        folder: the folder from which plain transformers loads the model and answers, or None if it
            does not support the format.
    """

    by: str
    logits: "Callable[[torch.Tensor], torch.Tensor]"
    prompts: "Sequence[torch.Tensor] | None" = None
    folder: Path | None = None


class ExportFormat(ABC):
    """A format of `temper export`. Its module imports torch inside functions only.

    Attributes:
        packages: the modules that must be installed.
        bits: the bits of each weight that a request may have.
        default_bits: the bits of each weight without a request, or None for the trained format.
        converts_folder: whether the format is made from a transformers folder that is written next
            to it and removed again, see `Work.whole_model`. It then rounds the weights itself.
        usage: code that loads the model in its folder, for the card.
    """

    packages: tuple[str, ...] = ()
    bits: tuple[int, ...] = (16,)
    default_bits: int | None = None
    converts_folder = False
    usage = ""

    def check(self, model: dict[str, Any], bits: int | None) -> None:  # noqa: B027
        """Check that this machine can write a model, without loading it.

        Args:
            model: the record of the run about it.
            bits: the requested bits of each weight, or None.

        Raises:
            ValueError: if it cannot; the message says why, and what to do.
        """

    @abstractmethod
    def write(self, work: Any, folder: Path) -> Iterator[Reading]:
        """Write the files, and yield each way to read them back, which is then compared.

        Args:
            work: the model and all about it, a `Work` of `export_work`.

        Raises:
            ValueError: if the model cannot be written in this format.
        """


class Safetensors(ExportFormat):
    """A folder that transformers, or PEFT for a LoRA, loads."""

    bits = (16, 8, 4)

    def write(self, work: Any, folder: Path) -> Iterator[Reading]:
        """Write the folder."""
        readings: Iterator[Reading] = work.write_transformers_folder(folder)
        return readings


@contextmanager
def in_its_words(library: str) -> Iterator[None]:
    """Turn an error of a library inside the block into an InputError that names the library."""
    try:
        yield
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            "deployment.export_library_failed",
            library=library,
            error_type=type(error).__name__,
            reason=first,
        ) from error


EXPORT_FORMATS.provide({SAFETENSORS: Safetensors}, ExportFormat)
