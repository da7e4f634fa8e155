"""The interface of export formats, and the built-in format: a transformers model folder.

Further formats are in `features` and in other packages. `EXPORT_FORMATS` lists all of them.
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
    """An exported model, loaded again by a library to compare it with the trained model.

    Attributes:
        by: the library that loads the files.
        logits: a function from token ids of shape (1, tokens) to fp32 logits of shape (tokens,
            vocabulary).
        prompts: the questions, encoded by the export's own tokenizer, or None if the export has no
            tokenizer.
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
        bits: the numbers of bits per weight that can be requested.
        default_bits: the bits per weight if none are requested, or None for the trained format.
        converts_folder: whether the export is converted from a temporary transformers folder (see
            `Work.whole_model`). The converter then rounds the weights itself.
        usage: Python code for the model card that loads the model.
    """

    packages: tuple[str, ...] = ()
    bits: tuple[int, ...] = (16,)
    default_bits: int | None = None
    converts_folder = False
    usage = ""

    def check(self, model: dict[str, Any], bits: int | None) -> None:  # noqa: B027
        """Check that this machine can export a model in this format. The model is not loaded.

        Args:
            model: the description of the model in run.json.
            bits: the requested bits of each weight, or None.

        Raises:
            ValueError: if the export is not possible; the message says why, and what to do.
        """

    @abstractmethod
    def write(self, work: Any, folder: Path) -> Iterator[Reading]:
        """Write the files, and yield a `Reading` for each library that loads them again.

        Args:
            work: the export in progress, a `Work` of `export_work`.

        Raises:
            ValueError: if the model cannot be written in this format.
        """


class Safetensors(ExportFormat):
    """A folder that transformers, or PEFT for a LoRA, loads."""

    bits = (16, 8, 4)

    def write(self, work: Any, folder: Path) -> Iterator[Reading]:
        readings: Iterator[Reading] = work.write_transformers_folder(folder)
        return readings


@contextmanager
def in_its_words(library: str) -> Iterator[None]:
    """Convert an error of a library inside the block to an InputError that names the library."""
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
