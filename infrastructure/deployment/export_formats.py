"""The formats of an export: their files are written, read back and compared.

The files are read back by transformers and PEFT (safetensors, also with bitsandbytes), onnxruntime
(ONNX), torch (torch.export), transformers' `gguf_file=` and, if installed, llama-cpp-python (GGUF).
"""

import gc
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.core.errors import InputError
from infrastructure.core.files import write_json, write_text
from infrastructure.core.messages import phrase
from infrastructure.core.optional import is_installed, require
from infrastructure.data.encoding.chat_format import PlainFormat, TemplateFormat
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.readers.rows import Turn
from infrastructure.deployment.export_comparison import (
    MAX_TOKENS,
    QUESTIONS,
    Comparer,
    logits_of,
    prompts_of,
)
from infrastructure.deployment.export_request import ExportRequest, Form
from infrastructure.deployment.gguf_converter import Converter
from infrastructure.deployment.logits import Logits
from infrastructure.deployment.ollama_template import find_pieces, modelfile
from infrastructure.models.model_manager import ModelManager
from infrastructure.models.progress_bars import without_progress_bars
from infrastructure.models.quantization import layers_not_in_blocks, quantization_config
from infrastructure.models.quantization_aware import write_rounded
from infrastructure.models.saving import save_tokenizer, write_model
from infrastructure.models.source import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WHOLE = ".whole"  # a temporary model folder, the input of exporters that need one
GGUF_FILE, ONNX_FILE, PROGRAM_FILE, MODELFILE = (
    "model.gguf",
    "model.onnx",
    "model.pt2",
    "Modelfile",
)
INPUT, OUTPUT = "input_ids", "logits"


@dataclass
class Work:
    """One export in progress.

    Attributes:
        model: the model on the CPU, merged if the request says so.
        ends: the tokens that end answers.
        notes: notes for the user.
        rounding: the rounding of the weights in training, if they are written with it.
    """

    model: Any
    tokenizer: "PreTrainedTokenizerBase | None"
    request: ExportRequest
    compare: Comparer
    ends: Sequence[str]
    notes: list[str]
    converter: Converter | None = None
    registered_name: str | None = None
    processor: Any = None
    rounding: str | None = None


def write_format(work: Work, folder: Path) -> None:
    """Write the files of the requested format to `folder`, and compare what they compute.

    Raises:
        ValueError: if the model cannot be written in this format; the error quotes the exporter's
            message.
        CheckpointError: if the written model differs from the trained one.
    """
    if work.rounding is not None:
        _write_rounded(work, folder, work.rounding)
    elif work.request.is_small:
        _write_small(work, folder)
    else:
        WRITERS[work.request.form](work, folder)


def _write_safetensors(work: Work, folder: Path) -> None:
    write_model(
        work.model,
        work.tokenizer,
        folder,
        registered_name=work.registered_name,
        processor=work.processor,
    )
    if work.registered_name is None:
        _compare_as_loaded(work, folder)


def _write_rounded(work: Work, folder: Path, kind: str) -> None:
    """Write the model with the rounded weights with which training computed, using torchao."""
    with _whole_model(work, folder) as whole:
        write_rounded(whole, folder, kind, work.tokenizer)
    _compare_as_loaded(work, folder)


def _compare_as_loaded(work: Work, folder: Path) -> None:
    """Compare the model that transformers, or PEFT, loads from the folder."""
    config = ModelConfig(name=str(folder), backend="transformers")
    manager = ModelManager(config, device=torch.device("cpu"), seed=0)
    manager.sees = work.processor is not None
    loaded = manager.load()
    loaded.model.eval()
    by = "PEFT" if hasattr(loaded.model, "peft_config") else "transformers"
    seeing = PictureTokens(manager.processor, str(folder)) if manager.sees else None
    prompts = (
        None if loaded.tokenizer is None else prompts_of(loaded.model, loaded.tokenizer, seeing)
    )
    work.compare(by, logits_of(loaded.model, seeing), prompts, folder)


def _write_small(work: Work, folder: Path) -> None:
    """Write the model in 8 or 4 bits with bitsandbytes."""
    kind = type(work.model)
    odd = layers_not_in_blocks(work.model) if work.request.bits == 4 else []
    skipped = [*odd, *_output_layer(work.model)] if odd else None  # None: bitsandbytes' default
    with _whole_model(work, folder, torch.bfloat16) as whole:
        small: Any = quantization_config(f"{work.request.bits}bit", torch.bfloat16)
        if odd:
            small.llm_int8_skip_modules = skipped
            work.notes.append(
                phrase("deployment.export_layers_kept_at_16_bits", count=len(odd), layer=odd[0])
            )
        with _in_its_words("bitsandbytes"), without_progress_bars():
            model = kind.from_pretrained(whole, quantization_config=small, device_map="cpu")
            model.save_pretrained(folder)
        del model
    if work.tokenizer is not None:
        save_tokenizer(work.tokenizer, folder)
    with without_progress_bars():
        again = kind.from_pretrained(folder, device_map="cpu").eval()
    prompts = _prompts_in(folder, again)
    work.compare("transformers and bitsandbytes", logits_of(again), prompts, folder)


def _output_layer(model: Any) -> list[str]:
    """Return the name of the layer that bitsandbytes skips by default, unless others are listed."""
    head = model.get_output_embeddings()
    return [name for name, module in model.named_modules() if module is head]


def _write_torch_export(work: Work, folder: Path) -> None:
    program = folder / PROGRAM_FILE
    with _in_its_words("torch.export"), torch.no_grad():
        exported = torch.export.export(
            Logits(work.model), (_sample(work),), dynamic_shapes=_free_sizes()
        )
        torch.export.save(exported, program)
        again: Any = torch.export.load(program).module()
    _save_beside(work, folder)
    prompts = _prompts_in(folder, work.model)
    work.compare("torch", lambda ids: again(ids)[0].detach().float(), prompts)


def _write_onnx(work: Work, folder: Path) -> None:
    file = folder / ONNX_FILE
    # torch warns about each operation of torchvision, none of which a language model uses.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with _in_its_words("torch.onnx"), torch.no_grad():
        torch.onnx.export(
            Logits(work.model),
            (_sample(work),),
            str(file),
            dynamo=True,
            dynamic_shapes=_free_sizes(),
            input_names=[INPUT],
            output_names=[OUTPUT],
            external_data=True,
            verbose=False,
        )
    runtime: Any = require("onnxruntime", "deployment.reading_onnx")
    with _in_its_words("onnxruntime"):
        session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

    def logits(ids: torch.Tensor) -> torch.Tensor:
        [output] = session.run([OUTPUT], {INPUT: ids.numpy()})
        return torch.from_numpy(output)[0].float()

    _save_beside(work, folder)
    work.compare("onnxruntime", logits, _prompts_in(folder, work.model))


def _write_gguf(work: Work, folder: Path) -> None:
    assert work.converter is not None
    if work.tokenizer is None:
        raise InputError("deployment.gguf_needs_tokenizer")
    file = folder / GGUF_FILE
    begins = bool(work.compare.reference.prompts[0][0, 0] == work.tokenizer.bos_token_id)
    with _whole_model(work, folder) as whole:
        _add_first_token(whole, begins)
        work.converter.convert(whole, file, work.request.bits)
    transformers: Any = require("transformers", "deployment.reading_gguf")
    with _in_its_words(phrase("deployment.gguf_reader")), without_progress_bars():
        again = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name)
    work.compare("transformers (gguf_file)", logits_of(again.eval()))
    if is_installed("llama_cpp"):
        _compare_in_llama_cpp(work, file)
    else:
        work.notes.append(phrase("deployment.gguf_not_checked_in_llama_cpp"))
    _write_modelfile(work, folder)


def _add_first_token(whole: Path, begins: bool) -> None:
    """Write to the tokenizer's settings whether a text begins with the BOS token, as in training.

    Without this, llama.cpp uses the default of the model's architecture.
    """
    file = whole / "tokenizer_config.json"
    write_json(file, {**read_json(file), "add_bos_token": begins, "add_eos_token": False})


def _compare_in_llama_cpp(work: Work, file: Path) -> None:
    llama_cpp: Any = require("llama_cpp", "deployment.reading_gguf")
    with _in_its_words("llama.cpp"):
        model = llama_cpp.Llama(str(file), n_ctx=MAX_TOKENS, logits_all=True, verbose=False)

    def logits(ids: torch.Tensor) -> torch.Tensor:
        model.reset()
        model.eval(ids[0].tolist())
        return torch.tensor(model.scores[: ids.shape[1]].copy()).float()

    # llama.cpp itself adds the token that begins every text, if the file says so.
    prompts = [
        torch.tensor([model.tokenize(text.encode(), add_bos=True, special=True)])
        for text in map(_as_text(work), [[Turn("user", question)] for question in QUESTIONS])
    ]
    try:
        work.compare("llama.cpp", logits, prompts)
    finally:
        model.close()


def _as_text(work: Work) -> Callable[[Sequence[Turn]], str]:
    """Return a function that formats messages as in training, without the initial BOS token."""
    tokenizer = work.tokenizer
    assert tokenizer is not None
    written = TemplateFormat(tokenizer) if tokenizer.chat_template else PlainFormat(tokenizer)
    first = tokenizer.bos_token or ""

    def text(turns: Sequence[Turn]) -> str:
        return str(written.write_prompt(turns).text).removeprefix(first)

    return text


def _write_modelfile(work: Work, folder: Path) -> None:
    pieces = find_pieces(_as_text(work))
    if pieces is None:
        work.notes.append(phrase("deployment.no_modelfile_for_template"))
        return
    write_text(folder / MODELFILE, modelfile(pieces, GGUF_FILE, work.ends))
    work.notes.append(phrase("deployment.ollama_command", file=MODELFILE))


def _save_beside(work: Work, folder: Path) -> None:
    """Save the tokenizer and the model's configuration to the folder."""
    work.model.config.save_pretrained(folder)
    if work.tokenizer is not None:
        save_tokenizer(work.tokenizer, folder)


def _prompts_in(folder: Path, model: Any) -> list[torch.Tensor] | None:
    """Return the questions, encoded by the tokenizer in a folder, or None if it has none."""
    if not (folder / "tokenizer_config.json").is_file():
        return None
    transformers: Any = require("transformers", "deployment.reading_tokenizer")
    return prompts_of(model, transformers.AutoTokenizer.from_pretrained(folder))


@contextmanager
def _whole_model(work: Work, folder: Path, dtype: torch.dtype | None = None) -> Iterator[Path]:
    """Yield a temporary folder with the model in its own format or in `dtype`. Free its memory."""
    whole = folder / WHOLE
    whole.mkdir()
    try:
        model = work.model if dtype is None else work.model.to(dtype)
        write_model(model, work.tokenizer, whole)
        del model
        work.model = None
        gc.collect()
        yield whole
    finally:
        shutil.rmtree(whole, ignore_errors=True)


@contextmanager
def _in_its_words(who: str) -> Iterator[None]:
    """Turn an error of a library inside the block into an InputError that names the library."""
    try:
        yield
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            "deployment.export_library_failed",
            library=who,
            error_type=type(error).__name__,
            reason=first,
        ) from error


def _sample(work: Work) -> torch.Tensor:
    """Return token ids for tracing, of shape (2, 8): a size of 1 would become a constant."""
    return torch.arange(16).reshape(2, 8) % int(work.model.config.vocab_size)


def _free_sizes() -> tuple[dict[int, Any]]:
    return ({0: torch.export.Dim("batch"), 1: torch.export.Dim("length", min=2)},)


WRITERS: dict[Form, Callable[[Work, Path], None]] = {
    Form.SAFETENSORS: _write_safetensors,
    Form.GGUF: _write_gguf,
    Form.ONNX: _write_onnx,
    Form.TORCH_EXPORT: _write_torch_export,
}
