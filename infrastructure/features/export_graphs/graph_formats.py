"""Export of a model as a graph from tokens to logits: an ONNX file or a torch.export program.

The graph accepts any number of rows, of two or more tokens each.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infrastructure.core.optional import require
from infrastructure.deployment.export_request import ExportFormat, Reading, in_its_words

if TYPE_CHECKING:
    import torch

    from infrastructure.deployment.export import Work

ONNX_FILE, PROGRAM_FILE = "model.onnx", "model.pt2"
INPUT, OUTPUT = "input_ids", "logits"


class TorchExportFormat(ExportFormat):
    """Export as a torch.export program, which needs only PyTorch, with the tokenizer."""

    usage = f"""import torch
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
token_ids = tokenizer("your text", return_tensors="pt")["input_ids"]  # int64, (rows, tokens)
logits = torch.export.load("{PROGRAM_FILE}").module()(token_ids)"""

    def write(self, work: "Work", folder: Path) -> Iterator[Reading]:
        """Trace the model, save the program, and yield it as torch loads it."""
        import torch

        program = folder / PROGRAM_FILE
        with in_its_words("torch.export"), torch.no_grad():
            exported = torch.export.export(work.as_function(), **_traced_with(work))
            torch.export.save(exported, program)
            again: Any = torch.export.load(program).module()
        work.save_beside(folder)
        prompts = work.prompts_in(folder)
        yield Reading("torch", lambda ids: again(ids)[0].detach().float(), prompts)


class OnnxFormat(ExportFormat):
    """Export as an ONNX file with its weights in a second file, and the tokenizer."""

    packages = ("onnx", "onnxscript", "onnxruntime")
    usage = f"""import onnxruntime
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
token_ids = tokenizer("your text", return_tensors="np")["input_ids"]  # int64, (rows, tokens)
session = onnxruntime.InferenceSession("{ONNX_FILE}")
[logits] = session.run(["{OUTPUT}"], {{"{INPUT}": token_ids}})"""

    def write(self, work: "Work", folder: Path) -> Iterator[Reading]:
        """Trace the model, save the file, and yield it as onnxruntime loads it."""
        import torch

        file = folder / ONNX_FILE
        # torch warns about each operation of torchvision, none of which a language model uses.
        logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
        with in_its_words("torch.onnx"), torch.no_grad():
            torch.onnx.export(
                work.as_function(),
                f=str(file),
                dynamo=True,
                input_names=[INPUT],
                output_names=[OUTPUT],
                external_data=True,
                verbose=False,
                **_traced_with(work),
            )
        runtime: Any = require("onnxruntime", "export_graphs.reading_onnx")
        with in_its_words("onnxruntime"):
            session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

        def logits(ids: "torch.Tensor") -> "torch.Tensor":
            [output] = session.run([OUTPUT], {INPUT: ids.numpy()})
            return torch.from_numpy(output)[0].float()

        work.save_beside(folder)
        yield Reading("onnxruntime", logits, work.prompts_in(folder))


def _traced_with(work: "Work") -> dict[str, Any]:
    """Return sample input for tracing, token ids (2, 8), with both dimensions marked as dynamic.

    A dimension of size 1 would be traced as a constant.
    """
    import torch

    ids = torch.arange(16).reshape(2, 8) % int(work.model.config.vocab_size)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", min=2)}
    return {"args": (ids,), "dynamic_shapes": (sizes,)}
