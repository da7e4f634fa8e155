"""All generators go back to where they were."""

import random

import numpy as np
import torch

from infrastructure.backup.state.random_state import capture_random, restore_random

CPU = torch.device("cpu")


def draw() -> tuple[float, float, float, float]:
    return random.gauss(0, 1), float(np.random.randn()), float(torch.rand(())), random.random()


def test_the_same_numbers_come_again() -> None:
    draw()  # leaves half a pair of gaussians in Python's and NumPy's generators
    saved = {name: tensor.clone() for name, tensor in capture_random(CPU).items()}
    first = [draw() for _ in range(5)]
    restore_random(saved, CPU)
    assert [draw() for _ in range(5)] == first
