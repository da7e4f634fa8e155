"""Saving and restoring the state of all random generators that a run uses."""

import random

import numpy as np
import torch

PYTHON_STATE_VERSION = 3

Tensors = dict[str, torch.Tensor]


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def capture_random(device: torch.device) -> Tensors:
    """Return the states of the random generators of Python, NumPy and torch.

    If `device` is a GPU, the states of all GPUs are included.
    """
    version, words, gauss = random.getstate()
    if version != PYTHON_STATE_VERSION:
        raise RuntimeError(f"unknown state version {version} of Python's random module")
    _, keys, position, has_gauss, cached_gauss = np.random.get_state()
    states = {
        "python": torch.tensor(words, dtype=torch.int64),
        "python_gauss": _optional_float(gauss),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "numpy_position": torch.tensor([position, has_gauss], dtype=torch.int64),
        "numpy_gauss": torch.tensor([cached_gauss], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"cuda_{index}"] = state
    return states


def restore_random(states: Tensors, device: torch.device) -> None:
    """Restore all generators to the states that `capture_random` returned."""
    gauss = states["python_gauss"].tolist()
    words = tuple(states["python"].tolist())
    random.setstate((PYTHON_STATE_VERSION, words, gauss[0] if gauss else None))
    position, has_gauss = states["numpy_position"].tolist()
    keys = states["numpy"].numpy().astype(np.uint32)
    cached_gauss = float(states["numpy_gauss"][0])
    np.random.set_state(("MT19937", keys, position, has_gauss, cached_gauss))
    torch.set_rng_state(states["torch"].to(torch.uint8).cpu())
    if device.type == "cuda":
        for index in range(torch.cuda.device_count()):
            if f"cuda_{index}" in states:
                torch.cuda.set_rng_state(states[f"cuda_{index}"].cpu(), index)


def _optional_float(value: float | None) -> torch.Tensor:
    return torch.tensor([] if value is None else [value], dtype=torch.float64)
