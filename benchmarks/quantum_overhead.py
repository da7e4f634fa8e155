"""What a quantum step costs a training: block selection every so many steps, and the same without.

    python -m benchmarks.quantum_overhead [--steps 100] [--frequency 100]

The embedded model trains on the sample data, 64 rows a step. Time is processor time of this
process, so that a busy machine does no harm. Prints one JSON line: of each training the median step
and all steps, what the questions took in all (measuring, answering, telling), and that as a
percentage of the rest.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.features.quantum.config import BLOCK_SELECTION
from infrastructure.features.quantum.training.quantum_extension import QuantumExtension
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.trainer_factory import TrainerFactory

BATCH_SIZE = 64


class Steps(Observer):
    """Processor seconds of each step, what a quantum step takes in it included."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def step_start(self, state: TrainingState) -> None:
        self._began = time.process_time()

    def step_end(self, state: TrainingState) -> None:
        self.seconds.append(time.process_time() - self._began)


def trained(folder: Path, steps: int, frequency: int | None, **settings: Any) -> dict[str, Any]:
    """Train, with a quantum step every `frequency` steps or without any; `asked` are settings of
    the section `quantum`."""
    config = DeploymentConfig(
        training={
            "max_steps": steps,
            "batch_size": BATCH_SIZE,
            "enabled_extensions": ["quantum"] if frequency else [],
            "optimization_frequency": frequency,
            "metrics_sinks": [],
        },
        quantum={"problem": BLOCK_SELECTION, **settings} if frequency else {},
        output_dir=str(folder),
        device="cpu",
    )
    watch = Steps()
    trainer = TrainerFactory().for_run(config, hooks=[watch])
    trainer.prepare()
    extensions = [one for one in trainer.hooks.hooks if isinstance(one, QuantumExtension)]
    extension = extensions[0] if extensions else None
    if extension is not None:
        extension.session.clock = extension.session.cost.clock = time.process_time
    trainer.train()
    spent = 0.0 if extension is None else extension.session.cost.spent_seconds
    records = [] if extension is None else extension.session.history.records()
    return {
        "step_seconds": round(median(watch.seconds), 4),
        "seconds": round(sum(watch.seconds), 2),
        "quantum_seconds": round(spent, 3),
        "outcomes": [record["outcome"] for record in records],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--frequency", type=int, default=100)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        with_it = trained(Path(folder) / "with", options.steps, options.frequency)
        print(json.dumps(with_it), file=sys.stderr)  # the other one takes as long
        without = trained(Path(folder) / "without", options.steps, None)
    rest = with_it["seconds"] - with_it["quantum_seconds"]
    figures = {
        "with": with_it,
        "without": without,
        "overhead_percent": round(100 * with_it["quantum_seconds"] / rest, 2),
    }
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
