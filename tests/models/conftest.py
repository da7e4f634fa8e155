"""A tiny real Llama with a real tokenizer, saved once; each test gets its own copy to break."""

import shutil
from pathlib import Path

import pytest
import torch


@pytest.fixture
def llama_folder(saved_llama: Path, tmp_path: Path) -> Path:
    """This test's own copy of the saved Llama."""
    return Path(shutil.copytree(saved_llama, tmp_path / "llama"))


@pytest.fixture
def input_ids() -> torch.Tensor:
    """One row of tokens, (1, 27)."""
    return torch.arange(3, 30).unsqueeze(0)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
