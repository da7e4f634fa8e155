"""A version as the Trainer's own checkpoint folder."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from infrastructure.backup.state.random_state import capture_random
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.hf_bridge.checkpoint_folder import (
    random_states,
    write_checkpoint_folder,
)

WEIGHT = torch.arange(6.0).reshape(2, 3)


def version(model: dict[str, Any], scaler: dict[str, Any] | None = None) -> Snapshot:
    """Of a training whose optimizer has nothing to remember."""
    encoded = torch.frombuffer(bytearray(b'{"global_step": 4}'), dtype=torch.uint8)
    tensors = {
        "model": {"a.weight": WEIGHT},
        "random": capture_random(torch.device("cpu")),
        "trainer": {"trainer_state.json": encoded},
    }
    optimizer = {"values": {}, "param_groups": [{"lr": 0.5, "params": [0]}]}
    values = {"optimizer": optimizer, "scheduler": {"last_epoch": 4}, "scaler": scaler}
    return Snapshot(tensors, {**values, "model": model})


def whole(config: str | None) -> dict[str, Any]:
    return {"adapters": None, "config": config, "tied": {"b.weight": "a.weight"}}


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


ALWAYS = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"}


@pytest.mark.parametrize("config", [None, '{"model_type": "gpt2"}'])
def test_a_whole_model_with_its_tied_weights_and_its_configuration_where_it_has_one(
    tmp_path: Path, config: str | None
) -> None:
    folder = write_checkpoint_folder(version(whole(config)), tmp_path / "f", tmp_path / "none")
    assert names(folder) == {"model.safetensors", *ALWAYS, *(["config.json"] if config else [])}
    if config:
        assert (folder / "config.json").read_text() == config
    found = load_file(folder / "model.safetensors")
    assert found.keys() == {"a.weight", "b.weight"}
    assert all(torch.equal(tensor, WEIGHT) for tensor in found.values())
    assert json.loads((folder / "trainer_state.json").read_text()) == {"global_step": 4}
    optimizer = torch.load(folder / "optimizer.pt", weights_only=True)
    assert optimizer["param_groups"] == [{"lr": 0.5, "params": [0]}]
    assert torch.load(folder / "scheduler.pt", weights_only=True) == {"last_epoch": 4}


def test_adapters_lie_in_folders_of_their_names_and_the_first_in_none(tmp_path: Path) -> None:
    adapter = {"config": {"r": 3}, "names": {"x.lora_A": "a.weight"}}
    model = {"adapters": {"default": adapter, "other": adapter}}
    folder = write_checkpoint_folder(version(model), tmp_path / "f", tmp_path / "none")
    files = {"adapter_config.json", "adapter_model.safetensors"}
    assert names(folder) == {*ALWAYS, *files, *(f"other/{name}" for name in files)}
    for inside in (folder, folder / "other"):
        assert json.loads((inside / "adapter_config.json").read_text()) == {"r": 3}
        found = load_file(inside / "adapter_model.safetensors")
        assert torch.equal(found["x.lora_A"], WEIGHT)


def test_the_tokenizer_and_the_loss_scaler_come_with_it(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    snapshot = version(whole(None), scaler={"scale": 8.0})
    folder = write_checkpoint_folder(snapshot, tmp_path / "f", tmp_path / "tokenizer")
    assert {"tokenizer.json", "scaler.pt"} <= names(folder)
    assert torch.load(folder / "scaler.pt", weights_only=True) == {"scale": 8.0}


@pytest.mark.parametrize("has_drawn", [False, True])
def test_each_generator_goes_on_where_it_was(has_drawn: bool) -> None:
    """With the second half of a drawn pair of normal numbers that Python and NumPy keep."""
    python, numpy, own = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        if has_drawn:
            random.gauss(0, 1)
            np.random.normal()
        captured = capture_random(torch.device("cpu"))
        expected = [random.gauss(0, 1), np.random.normal(), float(torch.rand(1))]
        states = random_states(captured)  # when they have gone on
        random.setstate(states["python"])
        np.random.set_state(states["numpy"])
        torch.set_rng_state(states["cpu"])
        assert [random.gauss(0, 1), np.random.normal(), float(torch.rand(1))] == expected
        assert "cuda" not in states or torch.cuda.is_available()
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(own)


def test_the_best_model_lies_where_the_state_of_the_trainer_points(tmp_path: Path) -> None:
    snapshot = version(whole(None))
    state = {"global_step": 4, "best_global_step": 3, "best_model_checkpoint": "/gone/checkpoint-3"}
    content = torch.tensor([1, 2, 250], dtype=torch.uint8)
    encoded = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
    snapshot.tensors["trainer"] = {"trainer_state.json": encoded}
    snapshot.tensors["best"] = {"model.safetensors": content, "b/config.json": content[:1]}
    folder = write_checkpoint_folder(snapshot, tmp_path / "f", tmp_path / "none")
    read = json.loads((folder / "trainer_state.json").read_text())
    best = Path(read.pop("best_model_checkpoint"))
    assert read == {"global_step": 4, "best_global_step": 3}
    assert best.name == "checkpoint-3"
    assert best.is_relative_to(folder)
    assert best.parent != folder, "PEFT takes a folder with weights in it for an adapter"
    assert (best / "model.safetensors").read_bytes() == bytes([1, 2, 250])
    assert (best / "b/config.json").read_bytes() == bytes([1])
