"""Inspection of a saved model in a folder: its kind, its weights, its tokenizer.

This reads only names and headers of weights, and does not import torch.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from safetensors import SafetensorError, safe_open

from infrastructure.core.checksums import SUMS, damaged_files
from infrastructure.core.errors import DamagedFileError, InputError
from infrastructure.core.files import file_sha256, recover_directory
from infrastructure.core.json_text import JsonObject, json_of, parse_json
from infrastructure.core.messages import phrase
from infrastructure.models.model_path import GGUF_SUFFIX, refuse_file
from infrastructure.monitoring.records.run_list import FINAL

REGISTERED_MANIFEST = "temper_model.json"
EXTENSIONS_MANIFEST = "extensions.json"  # weights attached by extensions; see added_modules
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
)
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
# Output heads, and GPT-2's embeddings.
NOT_ROUNDED = ("lm_head", "embed_out", "output_layer", "output", "wte", "wpe")
PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")


class SourceKind(StrEnum):
    """The kinds of sources from which a model is loaded."""

    EMBEDDED = "embedded"
    REGISTERED = "registered"
    HUB = "hub"
    FOLDER = "folder"
    LORA_FOLDER = "lora folder"
    REGISTERED_FOLDER = "registered folder"


@dataclass(frozen=True)
class ModelSource:
    """The kind and location of a model.

    Attributes:
        location: a registered name, a Hub name, or an absolute folder.
        revision: the revision of a Hub model, if it does not come from the configuration.
    """

    kind: SourceKind
    location: str
    revision: str | None = None

    @property
    def folder(self) -> Path:
        return Path(self.location)


def look_into(path: Path) -> ModelSource:
    """Return the kind and location of the model in a folder, or in the `final/` of a run.

    Raises:
        ValueError: the folder contains no model.
    """
    if (path / REGISTERED_MANIFEST).is_file():
        return ModelSource(SourceKind.REGISTERED_FOLDER, str(path))
    if (path / "adapter_config.json").is_file():
        return ModelSource(SourceKind.LORA_FOLDER, str(path))
    if (path / "config.json").is_file():
        return ModelSource(SourceKind.FOLDER, str(path))
    if is_there(path / FINAL):
        return look_into(path / FINAL)
    if (path / "run.json").is_file():
        raise InputError("models.run_has_no_final", path=path)
    for file in sorted(path.glob(f"*{GGUF_SUFFIX}")):
        refuse_file(file)
    raise InputError("models.folder_has_no_model", path=path)


def is_there(path: Path) -> bool:
    """Return whether a path exists.

    If replacing a saved model at this path was interrupted, the model is restored first.
    """
    if not path.exists():
        recover_directory(path)
    return path.exists()


def check_folder(path: Path) -> None:
    """Raise if the names and headers of files show that the model in a folder cannot be loaded.

    Raises:
        ValueError: a file is missing or damaged; the message names it.
    """
    source = look_into(path.resolve())
    if source.kind is SourceKind.FOLDER:
        read_json(source.folder / "config.json")
        for name in ("tokenizer_config.json", "tokenizer.json"):
            _check_tokenizer_file(source.folder / name)
        weight_files(source.folder)
    elif source.kind is SourceKind.LORA_FOLDER:
        read_json(source.folder / "adapter_config.json")
        weight_files(source.folder, "adapter_model")


def _check_tokenizer_file(file: Path) -> None:
    try:
        if file.is_file():
            read_json(file)
    except ValueError as error:
        raise InputError(
            "models.tokenizer_file_invalid", folder=file.parent, error=error
        ) from error


def weight_files(folder: Path, stem: str = "model") -> list[Path]:
    """Return the safetensors files with a saved model's weights, each with a valid header.

    Args:
        folder: the output of `save_pretrained`.
        stem: "model", or "adapter_model" for a LoRA.

    Raises:
        ValueError: there are none, a shard is missing, there are only pickled weights, or a file is
            damaged.
        PermissionError: a file may not be read.
    """
    files = _named_weight_files(folder, stem)
    for file in files:
        _check_safetensors(file)
    return files


def _named_weight_files(folder: Path, stem: str) -> list[Path]:
    single, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    if single.is_file():
        return [single]
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        shards = sorted(set(map(str, weight_map.values()))) if isinstance(weight_map, dict) else []
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing or not shards:
            what = (
                phrase(
                    "models.shards_missing",
                    num_missing=len(missing),
                    num_shards=len(shards),
                    shard=missing[0],
                )
                if missing
                else phrase("models.shard_index_empty")
            )
            raise InputError("models.weights_incomplete", folder=folder, problem=what)
        return [folder / shard for shard in shards]
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLED_SUFFIXES)
    if pickled:
        raise InputError("models.weights_are_pickled", folder=folder, file=pickled[0])
    raise InputError("models.weights_missing", folder=folder, file=single.name)


def _check_safetensors(file: Path) -> None:
    with file.open("rb"):  # safetensors would report an unreadable file as missing
        pass
    try:
        with safe_open(file, framework="np") as tensors:
            tensors.keys()
    except SafetensorError as error:
        raise InputError("models.weights_damaged", file=file, error=error) from error


def is_quantized(folder: Path) -> bool:
    """Return whether a saved model, or the model of a run, is quantized to 4 or 8 bits by
    bitsandbytes.
    """
    place = next((f for f in (folder, folder / FINAL) if (f / "config.json").is_file()), None)
    how = None if place is None else read_json(place / "config.json").get("quantization_config")
    return isinstance(how, dict) and bool(how.get("load_in_4bit") or how.get("load_in_8bit"))


def shapes_of(folder: Path) -> dict[str, list[int]]:
    """Return the shape of each weight of a saved model, by name, without reading the weights."""
    shapes: dict[str, list[int]] = {}
    for file in weight_files(folder):
        with safe_open(file, framework="np") as tensors:
            shapes |= {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    return shapes


def rounded_beside(model: Path) -> Path | None:
    """Return the folder of the rounded model that a run saved next to `final/`.

    Args:
        model: the run or its `final/`.

    Returns:
        The folder, or None if there is no rounded model.
    """
    plain = model if model.name == FINAL else model / FINAL
    files = sorted(plain.parent.glob(f"{FINAL}-*/config.json"))
    return files[0].parent if files else None


def notes_of_rounded(model: str) -> list[str]:
    """Return a note if the model was trained with rounded weights but is used without rounding."""
    rounded = rounded_beside(Path(model).expanduser())
    if rounded is None:
        return []
    return [phrase("models.weights_not_quantized", model=model, rounded=rounded)]


def check_sums(folder: Path) -> None:
    """Compare a saved model with its SHA256SUMS, if it has one.

    Raises:
        DamagedFileError: a file is missing or has changed. The message names it.
    """
    if damaged := damaged_files(folder):
        raise DamagedFileError(
            "models.checksum_mismatch", folder=folder, files=", ".join(damaged), sums=SUMS
        )


def refuse_other_base(lora: Path, base: object) -> None:
    """Raise if the run whose `final/` is a LoRA was trained on other weights of its base model.

    Args:
        base: the SHA-256 of the weights that its base model has now; None if it is not known.
    """
    trained = json_of(lora.parent / "run.json").get("model")
    recorded = trained.get("base_sha256") if isinstance(trained, dict) else None
    if base and recorded and base != recorded:
        name = read_json(lora / "adapter_config.json").get("base_model_name_or_path")
        raise InputError("models.lora_base_changed", folder=lora, name=name)


def has_processor(folder: Path) -> bool:
    """Return whether a folder contains a transformers processor."""
    return any((folder / name).is_file() for name in PROCESSOR_FILES)


def check_tokenizer(folder: Path) -> None:
    """Raise ValueError if `folder` contains no tokenizer."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise InputError("models.tokenizer_missing", folder=folder)


def weights_sha256(files: list[Path]) -> str:
    """Return one SHA-256 for all weight files, independent of their folder.

    This takes about a second per GB.
    """
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.name} {file_sha256(file)}\n".encode())
    return digest.hexdigest()


def read_json(path: Path) -> JsonObject:
    """Read the JSON object in a file.

    Raises:
        ValueError: the file does not contain a JSON object.
    """
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError("models.invalid_json", path=path, error=error) from error
    if not isinstance(value, dict):
        raise InputError("models.json_not_an_object", path=path)
    return value


def code_of_quantization(kind: str | None, dtype: str) -> str:
    """Return Python code for loading a LoRA's base with the quantization of the training.

    The code is a list of arguments; "" if the base is not quantized.

    Args:
        kind: "4bit" or "8bit", or None.
        dtype: the name of the dtype in which the training computed.
    """
    if kind is None:
        return ""
    options = ["load_in_8bit=True"]
    if kind == "4bit":
        options = [
            "load_in_4bit=True",
            'bnb_4bit_quant_type="nf4"',
            "bnb_4bit_use_double_quant=True",
            f'bnb_4bit_compute_dtype="{dtype}"',
        ]
    config = "".join(f"        {option},\n" for option in options)
    return f'dtype="{dtype}",\n    quantization_config=BitsAndBytesConfig(\n{config}    ),'


def words_of_quantization(kind: str | None) -> str:
    """Return a readable name of a quantization; "" if there is none."""
    return {"4bit": "4-bit NF4", "8bit": "8-bit LLM.int8()"}.get(kind or "", "")
