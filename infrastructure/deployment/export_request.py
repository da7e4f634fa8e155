"""The options of an export, and the checks of these options before a model is loaded."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.registries import EXPORT_FORMATS
from infrastructure.core.errors import InputError, StorageError
from infrastructure.core.json_text import JsonObject, as_object
from infrastructure.core.lookup import look_up
from infrastructure.core.messages import Setting, phrase
from infrastructure.core.optional import refuse_missing
from infrastructure.monitoring.drawing.formatting import format_bytes
from infrastructure.run.directory import RunDirectory

if TYPE_CHECKING:
    import torch

# The interface of export formats, and the built-in format: a transformers model folder.
#
# Further formats are in `features` and in other packages. `EXPORT_FORMATS` lists all of them.

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


TRANSFORMERS_KINDS = ("hub", "folder", "lora folder", "embedded")
FREE_AFTERWARDS_BYTES = 100_000_000


class Part(StrEnum):
    """The weights to export: those of the run's model, only the LoRA, or the LoRA merged into its
    base.
    """

    AUTO = "auto"
    LORA = "lora"
    MERGED = "merged"


EXPORT_FILE = "export.json"  # the facts of an export, in its folder


@dataclass(frozen=True)
class ExportRequest:
    """The format and the weights to export.

    Attributes:
        bits: the bits of each weight: 16, 8 or 4, or None to keep the trained format. In
            safetensors, 8 and 4 use bitsandbytes; for a quantization-aware run, 4 gives the rounded
            weights with which training computed.
        form: the format, a name in EXPORT_FORMATS.

    Raises:
        ValueError: if the options cannot be combined.
        MissingPackageError: if a required package is not installed.
    """

    part: Part = Part.AUTO
    bits: int | None = None
    form: str = SAFETENSORS

    def __post_init__(self) -> None:
        look_up("as", self.part, {str(part): part for part in Part})
        if self.part is Part.LORA and self.form != SAFETENSORS:
            raise InputError("deployment.export_lora_as_whole_model", format=self.form)
        if self.part is Part.LORA and self.bits in (8, 4):
            raise InputError("deployment.export_lora_with_bits", bits=self.bits)
        if self.bits not in (None, *self.format.bits):
            raise InputError(
                "deployment.export_bits_unsupported",
                format=self.form,
                bits=self.bits,
                possible=", ".join(map(str, self.format.bits)),
            )
        for package in self.format.packages:
            refuse_missing(package, f"{Setting('file_format', self.form)}")

    @property
    def format(self) -> ExportFormat:
        made: ExportFormat = EXPORT_FORMATS.make(self.form)
        return made

    @property
    def is_plain(self) -> bool:
        """True if the model is exported as it was trained."""
        return self == ExportRequest()

    @property
    def is_merged(self) -> bool:
        """True if a LoRA is merged, because it was requested or the export needs complete
        weights.
        """
        is_whole = self.form != SAFETENSORS or self.bits in (8, 4)
        return self.part is Part.MERGED or is_whole

    @property
    def least_bits(self) -> int | None:
        """The bits per exported weight, or None for the trained format."""
        return self.bits or self.format.default_bits

    @property
    def is_small(self) -> bool:
        """True if the weights are quantized for transformers.

        bitsandbytes quantizes them, or torchao for a quantization-aware run.
        """
        return self.form == SAFETENSORS and self.bits in (8, 4)

    def words(self) -> str:
        """Return the request as text for the user."""
        bits = (
            phrase("deployment.export_weights_unchanged")
            if self.bits is None
            else f"{self.bits} bits a weight"
        )
        return phrase("deployment.export_description", format=self.form, bits=bits)

    def facts(self) -> dict[str, object]:
        """Return the request as entries of the file that is saved next to the model."""
        return {"as": str(self.part), "bits": self.bits, "format": self.form}


def check_possible(run: RunDirectory, folder: Path, request: ExportRequest) -> None:
    """Check that the run, the machine and its disk support an export, without loading the model.

    Raises:
        ValueError: if the export is not possible; the message says why, and what is possible.
        StorageError: if the disk has too little space.
    """
    model = run.read_model()
    is_lora = bool(model.get("lora"))
    if not request.is_plain:
        refuse_scores(run, run.read_configuration())
    if model.get("extensions") and not request.is_plain:
        raise InputError(
            "deployment.export_extension_weights",
            run_id=run.run_id,
            extensions=", ".join(model["extensions"]),
        )
    if request.part is Part.LORA and not is_lora:
        raise InputError("deployment.export_run_without_lora", run_id=run.run_id)
    if not request.is_plain and model.get("kind") not in TRANSFORMERS_KINDS:
        raise InputError(
            "deployment.export_other_model_kind", run_id=run.run_id, model=model.get("name")
        )
    is_other = request.is_small or request.form != SAFETENSORS
    if model.get("sees") and is_other:
        raise InputError("deployment.export_vision_model", run_id=run.run_id)
    if request.is_small:
        rounding = rounding_of(run, request)
        package = str(rounding["package"]) if rounding else "bitsandbytes"
        refuse_missing(package, phrase("deployment.model_of_bits", bits=request.bits))
    request.format.check(model, request.bits)
    needed = needed_bytes(model, request)
    free = shutil.disk_usage(_existing(folder)).free
    if needed + FREE_AFTERWARDS_BYTES > free:
        raise StorageError(
            "deployment.export_disk_full",
            folder=folder,
            needed=format_bytes(needed),
            free=format_bytes(free),
        )


def rounding_of(run: RunDirectory, request: ExportRequest) -> JsonObject:
    """Return the rounding used in training, if the exported weights are rounded in this way.

    Return {} if the weights are exported without rounding, or rounded by another library.
    """
    rounding = as_object(run.read_model().get("rounding") or {})
    return rounding if request.is_small and request.bits == rounding.get("bits") else {}


def refuse_scores(run: RunDirectory, config: DeploymentConfig) -> None:
    """Raise an error for a reward model, because it outputs scores instead of text.

    Raises:
        ValueError: if the model is a reward model; the message says where it is.
    """
    if config.training.method == "reward":
        raise InputError("deployment.export_reward_model", run_id=run.run_id, path=run.final)


def needed_bytes(model: dict[str, Any], request: ExportRequest) -> int:
    """Estimate the size of an export in bytes, including temporary files."""
    total, trained = int(model.get("num_parameters") or 0), int(model.get("num_trainable") or 0)
    width = 2 if request.bits is not None or str(model.get("dtype")) in HALF else 4
    if model.get("lora") and not request.is_merged:
        return trained * 4
    size = total * width
    if request.is_small or request.format.converts_folder:  # made from a whole model next to it
        return (
            total * (2 if request.is_small else width)
            + total * (request.least_bits or 8 * width) // 8
            + total // 8
        )
    return size


HALF = ("bfloat16", "float16")


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next(parent for parent in (folder, *folder.parents) if parent.is_dir())
