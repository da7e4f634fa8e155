"""Exports as ONNX and for torch.export: each is read back as what was trained."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.core.messages import WORDS
from infrastructure.core.optional import is_installed
from infrastructure.deployment.export import export_model
from infrastructure.deployment.export_request import ExportRequest
from infrastructure.features.export_graphs.graph_formats import OnnxFormat, TorchExportFormat
from infrastructure.run.directory import RunDirectory
from tests.deployment.exports import facts_of, run_card, trained_lora
from tests.slow import slow


@pytest.fixture(scope="module")
def lora(saved_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return trained_lora(tmp_path_factory.mktemp("lora"), saved_llama)


@slow  # with a stand-in below
def test_a_program_of_torch_is_read_back(
    lora: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(lora, "torch-export", "torch", tmp_path, monkeypatch)
    assert (tmp_path / "out" / "model.pt2").is_file()


def test_a_program_of_torch_is_written_and_read_with_these_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tracing, which takes seconds, is left out."""
    traced: dict[str, Any] = {}

    def trace(model: torch.nn.Module, **given: Any) -> str:
        traced.update(given, model=model)
        return "traced"

    def load(path: Path) -> Any:
        assert path.read_text() == "traced"
        return SimpleNamespace(module=lambda: lambda ids: ids[..., None].half().requires_grad_())

    monkeypatch.setattr(torch.export, "export", trace)
    monkeypatch.setattr(torch.export, "save", lambda program, path: path.write_text(program))
    monkeypatch.setattr(torch.export, "load", load)
    saved: list[Path] = []
    model = torch.nn.Identity()
    work: Any = SimpleNamespace(
        model=SimpleNamespace(config=SimpleNamespace(vocab_size=10)),
        as_function=lambda: model,
        save_beside=saved.append,
        prompts_in=lambda folder: [folder],
    )
    [reading] = TorchExportFormat().write(work, tmp_path)
    logits = reading.logits(torch.tensor([[3, 4]]))
    assert (logits.dtype, logits.tolist(), logits.requires_grad) == (
        *(torch.float32, [[3.0], [4.0]], False),
    )
    assert (reading.by, reading.prompts, saved) == ("torch", [tmp_path], [tmp_path])
    assert (tmp_path / "model.pt2").is_file()
    assert 'torch.export.load("model.pt2")' in TorchExportFormat.usage
    [ids], [sizes] = traced.pop("args"), traced.pop("dynamic_shapes")
    assert ids.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 0, 1, 2, 3, 4, 5]]
    assert {axis: (one.__name__, one.min) for axis, one in sizes.items()} == {
        **{0: ("batch", 0), 1: ("length", 2)}
    }
    assert traced == {"model": model}


def test_onnx_is_written_and_read_with_these_names_and_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime is a stand-in with the same signatures."""
    written: dict[str, Any] = {}

    class Session:
        def __init__(self, file: str, providers: list[str]) -> None:
            assert (file, providers) == (written["f"], ["CPUExecutionProvider"])

        def run(self, outputs: list[str], inputs: dict[str, Any]) -> list[Any]:
            assert outputs == ["logits"]
            return [inputs["input_ids"][..., None].astype("float16")]

    runtime = {"__spec__": SimpleNamespace(name="onnxruntime"), "InferenceSession": Session}
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(**runtime))
    monkeypatch.setattr(torch.onnx, "export", lambda _, **given: written.update(given))
    saved: list[Path] = []
    work: Any = SimpleNamespace(
        model=SimpleNamespace(config=SimpleNamespace(vocab_size=10)),
        as_function=torch.nn.Identity,
        save_beside=saved.append,
        prompts_in=lambda folder: [folder],
    )
    [reading] = OnnxFormat().write(work, tmp_path)
    logits = reading.logits(torch.tensor([[3, 4]]))
    assert (logits.dtype, logits.tolist()) == (torch.float32, [[3.0], [4.0]])
    assert (reading.by, reading.prompts, saved) == ("onnxruntime", [tmp_path], [tmp_path])
    [ids], [sizes] = written.pop("args"), written.pop("dynamic_shapes")
    assert ids.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 0, 1, 2, 3, 4, 5]]
    assert [(axis, one.__name__, one.min) for axis, one in sizes.items()] == [
        *((0, "batch", 0), (1, "length", 2))
    ]
    assert written == {
        **{"f": str(tmp_path / "model.onnx"), "dynamo": True, "external_data": True},
        **{"input_names": ["input_ids"], "output_names": ["logits"], "verbose": False},
    }


@slow
@pytest.mark.skipif(not is_installed("onnxruntime"), reason="onnxruntime is not installed")
@pytest.mark.filterwarnings("ignore", "error:Exporting a model while")  # it has many others
def test_onnx_is_read_back_by_its_runtime(
    lora: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(lora, "onnx", "onnxruntime", tmp_path, monkeypatch)


def compare(
    run: RunDirectory, form: str, by: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Export a model, and compare what the program of its card loads, too."""
    monkeypatch.delenv(WORDS)  # the card's program is one of the words
    export_model(run, None, folder / "out", ExportRequest(form=form))
    [compared] = facts_of(folder / "out")["compared"]
    assert compared["read_by"] == by
    assert compared["same_prompt"] is True
    assert compared["logits_distance"] < 1e-4
    assert compared["same_choice"] == 1.0
    monkeypatch.chdir(folder / "out")
    assert run_card(folder / "out")["logits"].ndim == 3
