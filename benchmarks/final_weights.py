"""Hashes of what small trainings by one process end with, to compare two versions of the code.

    python -m benchmarks.final_weights > before.txt        # then the same after a change, and diff

Each line is one configuration: the hash of its final weights, and that of its losses. One thread,
fp32 or bf16 on the CPU: the same machine and packages give the same bits again.
"""

import hashlib
import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from infrastructure.backup.format.tensor_bytes import to_bytes
from tests.conftest import save_tiny_llama
from tests.training.distributed.small_groups import small_config, trained

LORA = {"model.lora_config": {"r": 4, "dropout": 0.0}}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "full fp32": {},
    "full bf16": {"training.mixed_precision": "bf16"},
    "without packing": {"data.packing": False},
    "accumulation 3": {"training.gradient_accumulation": 3},
    "lora": LORA,
    "lora with dropout": {"model.lora_config": {"r": 4, "dropout": 0.3}},
    "quantum blocks": {
        "training.enabled_extensions": ["quantum"],
        "training.optimization_frequency": 3,
        "quantum.problem": "block_selection",
        "quantum.num_blocks": 1,
        "quantum.max_overhead_percent": 1e6,
    },
    "quantum data": {
        "training.enabled_extensions": ["quantum"],
        "quantum.problem": "data_selection",
        "quantum.data_budget": 0.5,
        "quantum.max_overhead_percent": 1e6,
    },
    "stack-wise": {
        "training.strategy": "progressive",
        "training.progressive": {"target_stacks": 2},
        "training.max_steps": 30,
    },
    "curriculum": {
        "training.strategy": "curriculum",
        "training.curriculum_by": "loss",
        "training.curriculum_stages": 2,
    },
    "validation and saves": {"data.validation_split": 0.2, "training.checkpoint_frequency": 3},
}


def hashes(folder: Path, model: Path, settings: dict[str, Any]) -> tuple[str, str]:
    """Hashes of the weights and of the losses."""
    common = {"training.max_steps": 12, "training.num_epochs": 4}
    config = small_config(folder, model, **{**common, **settings})
    with tempfile.TemporaryDirectory() as checkpoints:
        losses, trainer = trained(config, checkpoint_directory=Path(checkpoints))
    digest = hashlib.sha256()
    for name, tensor in sorted(trainer.model.state_dict().items()):
        digest.update(name.encode())
        digest.update(to_bytes(tensor).data)
    of_losses = hashlib.sha256(json.dumps(losses).encode())
    return digest.hexdigest()[:16], of_losses.hexdigest()[:16]


def main() -> None:
    """Print a line for each configuration, or for those named."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    wanted = sys.argv[1:] or [*CONFIGURATIONS]
    with tempfile.TemporaryDirectory() as folder:
        model = save_tiny_llama(Path(folder) / "model")
        for name in wanted:
            weights, losses = hashes(Path(folder), model, CONFIGURATIONS[name])
            print(f"{name:22}{weights}  {losses}", flush=True)


if __name__ == "__main__":
    main()
