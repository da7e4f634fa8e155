"""All generators go back to where they were."""

import random

import numpy as np
import pytest
import torch

from infrastructure.backup.state.random_state import (
    capture_random,
    restore_random,
    seed_everything,
)

CPU = torch.device("cpu")


def draw() -> tuple[float, float, float, float]:
    return random.gauss(0, 1), float(np.random.randn()), float(torch.rand(())), random.random()


def test_the_same_numbers_come_again() -> None:
    draw()  # leaves half a pair of gaussians in Python's and NumPy's generators
    saved = {name: tensor.clone() for name, tensor in capture_random(CPU).items()}
    first = [draw() for _ in range(5)]
    restore_random(saved, CPU)
    assert [draw() for _ in range(5)] == first


def test_a_seed_begins_all_generators_anew() -> None:
    drawn = []
    for seed in (7, 8, 7):
        seed_everything(seed)
        drawn.append(draw())
    assert drawn[0] == drawn[2]
    assert all(one != other for one, other in zip(*drawn[:2], strict=True))


def test_each_gpu_has_its_own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may have fewer or more of them than the one that saved."""
    gpus = [torch.tensor([number], dtype=torch.uint8) for number in range(3)]
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: gpus)
    states = capture_random(torch.device("cuda"))
    assert {name: states[name] for name in states if name.startswith("cuda")} == {
        f"cuda_{number}": gpus[number] for number in range(3)
    }
    assert not [name for name in capture_random(CPU) if name.startswith("cuda")]
    restored: list[tuple[int, int]] = []
    monkeypatch.setattr(
        torch.cuda,
        "set_rng_state",
        lambda state, index: restored.append((index, state.item())),
    )
    for count, expected in ((2, [(0, 0), (1, 1)]), (4, [(0, 0), (1, 1), (2, 2)])):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        restore_random(states, torch.device("cuda"))
        assert restored == expected
        restored.clear()
    restore_random(states, CPU)
    assert restored == []


def test_a_generator_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, words, gauss = random.getstate()
    monkeypatch.setattr(random, "getstate", lambda: (2, words, gauss))
    with pytest.raises(RuntimeError, match="version 2 "):
        capture_random(CPU)
