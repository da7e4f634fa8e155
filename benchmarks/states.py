"""Training states of real shapes and sizes, for measurements of checkpoints."""

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import torch

from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.tensor_bytes import to_bytes

Tensors = dict[str, torch.Tensor]

WIDTH = 768
# GPT-2 small with a head of its own: 148 tensors, 124.4 million parameters.
GPT2_LAYER = [(WIDTH,), (WIDTH,), (WIDTH, 3 * WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,)]
GPT2_LAYER += [(WIDTH,), (WIDTH,), (WIDTH, 4 * WIDTH), (4 * WIDTH,), (4 * WIDTH, WIDTH), (WIDTH,)]
GPT2 = [(50257, WIDTH), (1024, WIDTH), (WIDTH,), (WIDTH,), *(GPT2_LAYER * 12)]
# LoRA of rank 16 on the seven linear layers of a 1.1 B Llama (22 layers): 12.6 million parameters.
LORA_LAYER = [(2048, 2048), (2048, 256), (2048, 256), (2048, 2048)]
LORA_LAYER += [(2048, 5632), (2048, 5632), (5632, 2048)]
LORA = [shape for a, b in LORA_LAYER * 22 for shape in ((16, a), (b, 16))]


def adam_state(shapes: Sequence[tuple[int, ...]], share: float = 1.0) -> Tensors:
    """fp32 weights with both moments of Adam: three tensors for each shape; random numbers.

    Args:
        share: of each tensor's rows that are there, for a smaller state of the same shape.
    """
    generator = torch.Generator().manual_seed(0)
    tensors: Tensors = {}
    for group in ("model", "optimizer/m", "optimizer/v"):
        for number, (rows, *rest) in enumerate(shapes):
            size = (max(1, round(rows * share)), *rest)
            tensors[f"{group}/{number}"] = torch.empty(size).uniform_(-1, 1, generator=generator)
    return tensors


def as_bytes(tensors: Tensors) -> dict[str, TensorBytes]:
    """As the store takes them, in the memory of `tensors`."""
    return {name: to_bytes(tensor) for name, tensor in tensors.items()}


def size_bytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def seconds_of(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def ratios(
    pairs: Iterator[tuple[float, float]] | Sequence[tuple[float, float]],
) -> dict[str, float]:
    """Median and ninth decile of the ratios of neighbouring times."""
    ordered = sorted(first / second for first, second in pairs)
    ninth = ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))]
    return {"median": round(median(ordered), 3), "p90": round(ninth, 3)}
