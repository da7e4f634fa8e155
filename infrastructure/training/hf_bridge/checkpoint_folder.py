"""Conversion of a Temper checkpoint to a folder for `resume_from_checkpoint` of a Trainer.

The Trainer reads the folder with `weights_only`. Temper never unpickles anything in it.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from infrastructure.backup.state.optimizer_state import Tensors, merge_optimizer
from infrastructure.backup.state.random_state import PYTHON_STATE_VERSION
from infrastructure.core.exact_json import from_json
from infrastructure.core.files import whole_directory
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.hf_bridge.best_model import BEST, write_best
from infrastructure.training.hf_bridge.trainer_state import TRAINER_STATE, trainer_state_of

DEFAULT_ADAPTER = "default"  # its files are in the folder itself, others' in one of their name


def write_checkpoint_folder(snapshot: Snapshot, folder: Path, tokenizer: Path) -> Path:
    """Write a snapshot as a Trainer's checkpoint folder, completely or not at all.

    Args:
        tokenizer: folder with the run's tokenizer, which is copied if it exists.

    Raises:
        OSError: the disk returns an error.
    """
    values = snapshot.values
    with whole_directory(folder) as part:
        if tokenizer.is_dir():
            shutil.copytree(tokenizer, part, dirs_exist_ok=True)
        _write_model(snapshot.tensors["model"], values["model"], part)
        optimizer = merge_optimizer(
            snapshot.tensors.get("optimizer", {}), from_json(values["optimizer"])
        )
        torch.save(optimizer, part / "optimizer.pt")
        torch.save(from_json(values["scheduler"]), part / "scheduler.pt")
        if values["scaler"] is not None:
            torch.save(from_json(values["scaler"]), part / "scaler.pt")
        torch.save(random_states(snapshot.tensors["random"]), part / "rng_state.pth")
        state = trainer_state_of(snapshot)
        if best := snapshot.tensors.get(BEST):
            inside = Path(BEST) / f"checkpoint-{state['best_global_step']}"  # not an adapter's
            write_best(best, part / inside)
            state["best_model_checkpoint"] = str(folder / inside)
        (part / TRAINER_STATE).write_text(json.dumps(state))
    return folder


def _write_model(tensors: Tensors, files: dict[str, Any], folder: Path) -> None:
    if files["adapters"] is None:
        if files["config"] is not None:
            (folder / "config.json").write_text(files["config"])
        tied = {name: tensors[own].clone() for name, own in files["tied"].items()}
        _save({**tensors, **tied}, folder / "model.safetensors")
        return
    for adapter, described in files["adapters"].items():
        inside = folder if adapter == DEFAULT_ADAPTER else folder / adapter
        inside.mkdir(exist_ok=True)
        (inside / "adapter_config.json").write_text(json.dumps(described["config"]))
        named = {name: tensors[own] for name, own in described["names"].items()}
        _save(named, inside / "adapter_model.safetensors")


def _save(tensors: Tensors, path: Path) -> None:
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, path, metadata={"format": "pt"})


def random_states(states: Tensors) -> dict[str, object]:
    """Return the states of all generators in the format of the Trainer's `rng_state.pth`."""
    gauss = states["python_gauss"].tolist()
    words = tuple(states["python"].tolist())
    position, has_gauss = states["numpy_position"].tolist()
    keys = states["numpy"].numpy().astype(np.uint32)
    random: dict[str, object] = {
        "python": (PYTHON_STATE_VERSION, words, gauss[0] if gauss else None),
        "numpy": ("MT19937", keys, position, has_gauss, float(states["numpy_gauss"][0])),
        "cpu": states["torch"].to(torch.uint8),
    }
    if torch.cuda.is_available() and (own := f"cuda_{torch.cuda.current_device()}") in states:
        random["cuda"] = states[own]
    return random
