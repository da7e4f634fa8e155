"""Export as a GGUF file by llama.cpp's converter, with a Modelfile for Ollama.

To check the file, Temper loads it with transformers (`gguf_file=`), and also with llama-cpp-python
if that package is installed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infrastructure.core.errors import InputError
from infrastructure.core.files import write_json, write_text
from infrastructure.core.messages import phrase
from infrastructure.core.optional import is_installed, require
from infrastructure.deployment.export_request import ExportFormat, Reading, in_its_words
from infrastructure.features.export_gguf.converter import find_converter
from infrastructure.features.export_gguf.ollama_template import find_pieces, modelfile
from infrastructure.models.progress_bars import without_progress_bars
from infrastructure.models.saved_model import read_json

if TYPE_CHECKING:
    import torch

    from infrastructure.deployment.export import Work

GGUF_FILE, MODELFILE = "model.gguf", "Modelfile"
MAX_TOKENS = 64  # of a question, which Temper cuts there


class GgufFormat(ExportFormat):
    """Export as one GGUF file with the tokenizer; 8 and 4 bits are llama.cpp's q8_0 and q4_k_m."""

    packages = ("gguf",)
    bits = (16, 8, 4)
    default_bits = 16
    converts_folder = True
    usage = f"""from llama_cpp import Llama

model = Llama("{GGUF_FILE}")"""

    def check(self, model: dict[str, Any], bits: int | None) -> None:
        """Check that the converter is installed and supports the model's architecture."""
        find_converter().check(str(model.get("architecture", "")), bits)

    def write(self, work: "Work", folder: Path) -> Iterator[Reading]:
        """Convert the model, and yield the file as transformers and llama.cpp load it."""
        if work.tokenizer is None:
            raise InputError("export_gguf.needs_tokenizer")
        file = folder / GGUF_FILE
        begins = bool(work.compare.reference.prompts[0][0, 0] == work.tokenizer.bos_token_id)
        with work.whole_model(folder) as whole:
            _add_first_token(whole, begins)
            find_converter().convert(whole, file, work.request.bits)
        transformers: Any = require("transformers", "export_gguf.reading")
        with in_its_words(phrase("export_gguf.reader")), without_progress_bars():
            again = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name)
        yield Reading("transformers (gguf_file)", work.logits_of(again))
        if is_installed("llama_cpp"):
            yield from _read_by_llama_cpp(work, file)
        else:
            work.notes.append(phrase("export_gguf.not_checked_in_llama_cpp"))
        _write_modelfile(work, folder)


def _add_first_token(whole: Path, begins: bool) -> None:
    """Set in the tokenizer's configuration whether texts begin with BOS, as they did in training.

    Without this setting, llama.cpp uses the default of the model's architecture.
    """
    file = whole / "tokenizer_config.json"
    write_json(file, {**read_json(file), "add_bos_token": begins, "add_eos_token": False})


def _read_by_llama_cpp(work: "Work", file: Path) -> Iterator[Reading]:
    import torch

    llama_cpp: Any = require("llama_cpp", "export_gguf.reading")
    with in_its_words("llama.cpp"):
        model = llama_cpp.Llama(str(file), n_ctx=MAX_TOKENS, logits_all=True, verbose=False)

    def logits(ids: "torch.Tensor") -> "torch.Tensor":
        model.reset()
        model.eval(ids[0].tolist())
        return torch.tensor(model.scores[: ids.shape[1]].copy()).float()

    # llama.cpp itself adds the token that begins every text, if the file says so.
    prompts = [
        torch.tensor([model.tokenize(text.encode(), add_bos=True, special=True)])
        for text in work.questions()
    ]
    try:
        yield Reading("llama.cpp", logits, prompts)
    finally:
        model.close()


def _write_modelfile(work: "Work", folder: Path) -> None:
    pieces = find_pieces(work.as_text)
    if pieces is None:
        work.notes.append(phrase("export_gguf.no_modelfile_for_template"))
        return
    write_text(folder / MODELFILE, modelfile(pieces, GGUF_FILE, work.ends))
    work.notes.append(phrase("export_gguf.ollama_command", file=MODELFILE))
