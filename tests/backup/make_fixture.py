"""Writes the golden store of the present format: `python -m tests.backup.make_fixture`.

Once for each format number, when it is released; what is there is never written again, because all
that it is for is to be as old as it is.
"""

import sys
from pathlib import Path

import torch

from infrastructure.backup.format.manifest import FORMAT_VERSION
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.backup.format.tensor_bytes import DTYPES, to_bytes
from infrastructure.training.distributed.checkpoint_storage import save_distributed

FIXTURES = Path(__file__).parent / "fixtures"
FILES = {"run.json": b'{"run_id": "golden"}', "logs/training.log": b"a line\n" * 40}
VALUES = {"step": 2, "position": {"phase": 0, "epoch": 1, "example": 7}, "loss": 0.1, "name": "ü"}


def tensors_of(step: int) -> dict[str, torch.Tensor]:
    """One tensor of each type, and shapes with nothing, one number and many in them."""
    count = torch.arange(24).reshape(4, 6) % 2 + (step > 1)
    found = {f"types/{name}": count.to(dtype) for name, dtype in DTYPES.items()}
    found["model/layer.weight"] = (
        torch.arange(3000, dtype=torch.float32).reshape(30, 100) / 7 + step
    )
    found["model/ü"] = torch.tensor(float(step))
    found["frozen/base"] = torch.linspace(-1, 1, 500)
    found["empty/none"] = torch.empty(0, 3)
    return found


def shared_state() -> dict[str, object]:
    """As several processes would save it."""
    weight = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    return {"model": {"a": weight}, "optimizer": {"lr": 0.5, "betas": (0.9, 0.999)}}


def make(root: Path) -> None:
    """Four versions: plain, compressed, unhealthy, and of several processes.

    Raises:
        FileExistsError: there is something already.
    """
    root.mkdir(parents=True)
    files = {
        f"files/{name}@000000000": TensorBytes("U8", (len(data),), data)
        for name, data in FILES.items()
    }
    for step, compress in ((1, False), (2, True)):
        tensors = {name: to_bytes(tensor) for name, tensor in tensors_of(step).items()}
        values = {**VALUES, "step": step}
        Store(root, compress=compress).commit({**tensors, **files}, values, step=step, score=2.5)
    bad = {"model/layer.weight": to_bytes(torch.full((2,), torch.nan))}
    Store(root).commit(bad, {"step": 3}, step=3, kind="emergency", healthy=False)
    save_distributed(root, shared_state(), {"step": 4}, step=4)
    (root / "lock").unlink()
    (root / "tmp").rmdir()  # git keeps no empty directory


if __name__ == "__main__":
    try:
        make(FIXTURES / f"format-{FORMAT_VERSION}")
    except FileExistsError as error:
        sys.exit(f"{error.filename} is there, and stays as it is")
