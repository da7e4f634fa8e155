"""G16: a training script for `ckpt-chaos` (PyPI, MIT), which kills it at every file operation.

    ckpt-chaos run --max-points 400 --checkpoint-glob '{out}/committed/*' \
        --step-regex 'resumed from step ([0-9]+)' --result-file '{out}/final.json' \
        --fail-on HARD_FAIL,SILENT_DIVERGENCE,LOST_WORK \
        -- python -m tests.faults.chaos_example {out}

The same command goes on with what it finds. `committed/` gets a file for each step whose checkpoint
is committed, because that is what must be gone on from; the store's own names say a version's hash,
which holds the time and so differs from run to run.
"""

import argparse
import json
import os
from pathlib import Path

import torch

from infrastructure.backup.format.retention import Retention
from infrastructure.core.errors import CheckpointError
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from tests.training.toy_training import Training


class Committed(Observer):
    """Says which steps are safe."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def checkpoint_saved(self, state: TrainingState) -> None:
        self.directory.mkdir(exist_ok=True)
        (self.directory / f"step-{state.step}").write_text("")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    training = Training(
        directory / "checkpoints",
        hooks=[Committed(directory / "committed")],
        num_epochs=2,
        checkpoint_frequency=2,
    )
    training.checkpoints.retention = Retention(99)
    try:
        newest = training.checkpoints.newest()
        print(f"resumed from step {step_of(newest)}", flush=True)
        training.resume(newest)
    except CheckpointError:
        training.run()
    part = directory / "final.part"
    part.write_text(json.dumps([float(weight) for weight in training.weights]))
    os.replace(part, directory / "final.json")  # noqa: PTH105 - the name that ckpt-chaos watches


if __name__ == "__main__":
    main()
