"""Weights reach everybody as they are, and gradients are summed onto the leader, in every type."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from infrastructure.training.parallel import exchange as module
from infrastructure.training.parallel.exchange import Exchange

ROOT = Path(__file__).resolve().parents[3]
OTHER = """
import sys, torch
from pathlib import Path
import torch.distributed as dist
from infrastructure.training.parallel import exchange as module
from tests.training.parallel.test_exchange import gradients, weights
module.BUCKET_BYTES = 16
exchange = module.Exchange(dist.FileStore(sys.argv[1], 2), 1, 2, torch.device("cpu"))
found = weights(0)
exchange.spread(found)
assert all(torch.equal(a, b) for a, b in zip(found, weights(7), strict=True)), found
exchange.add_up(gradients(2))
import torch.distributed.nn.functional  # as compiling does; it would keep the group as a default
exchange.close()  # else gloo's threads may be ended in the middle of something
names = [task.joinpath("comm").read_text() for task in Path("/proc/self/task").iterdir()]
assert not [name for name in names if "gloo" in name], names
"""


def weights(value: int) -> list[torch.Tensor]:
    """Of several types; one not contiguous, one without dimensions, one larger than a bucket."""
    return [
        torch.tensor([value > 0, False]),
        torch.tensor(value),
        torch.full((5,), value + 0.5, dtype=torch.bfloat16),
        torch.arange(6.0).view(2, 3).t() * value,
        torch.full((9,), float(value)),
        torch.empty(0),
    ]


def gradients(value: int) -> list[torch.Tensor]:
    types = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    return [torch.full((3, 2), float(value), dtype=dtype) for dtype in types]


def test_weights_are_spread_and_gradients_add_up_in_every_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUCKET_BYTES", 16)
    other = subprocess.Popen([sys.executable, "-c", OTHER, str(tmp_path / "store")], cwd=ROOT)
    exchange = Exchange(dist.FileStore(str(tmp_path / "store"), 2), 0, 2, torch.device("cpu"))
    try:
        own = weights(7)
        exchange.spread(own)
        assert all(torch.equal(a, b) for a, b in zip(own, weights(7), strict=True))
        sums = gradients(1)
        exchange.add_up(sums)
        assert all(torch.equal(a, b) for a, b in zip(sums, gradients(3), strict=True))
        moved = sum(tensor.nbytes for tensor in [*own, *sums])
        assert exchange.moved_bytes == moved
        assert other.wait(240) == 0
    finally:
        other.kill()
        other.wait()
        exchange.close()
