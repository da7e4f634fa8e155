"""Exports as ONNX and for torch.export: each is read back as what was trained."""

from pathlib import Path

import pytest

from infrastructure.core.messages import WORDS
from infrastructure.core.optional import is_installed
from infrastructure.deployment.export import export_model
from infrastructure.deployment.export_request import ExportRequest
from infrastructure.run.directory import RunDirectory
from tests.deployment.exports import facts_of, run_card, trained_lora
from tests.slow import slow


@pytest.fixture(scope="module")
def lora(saved_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return trained_lora(tmp_path_factory.mktemp("lora"), saved_llama)


def test_a_program_of_torch_is_read_back(
    lora: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(lora, "torch-export", "torch", tmp_path, monkeypatch)
    assert (tmp_path / "out" / "model.pt2").is_file()


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
