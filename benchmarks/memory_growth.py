"""Does memory grow with the shapes that a training has seen? Its peak after 50 steps, and at the
end.

    python -m benchmarks.memory_growth [--steps 1000] [--precision bf16]

A tiny model trains on a CPU, on rows of random lengths: packed, each step has a shape of its own,
for which libraries make kernels in bf16, and keep them; fp32 has no such kernels, and says what
else grows. The peak is that of the process's resident memory (VmHWM), counted from the first step
on. Prints a table, and fails where the peak at the end is more than 5% above that after 50 steps.
"""

import argparse
import json
import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.machine import environment, publish, sentence, table
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import EmbeddedModelConfig, ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.core.state import TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Observer

EARLY_STEPS = 50
BETWEEN = (100, 200, 400, 700)  # after so many steps the peak is shown, too
MOST_RATIO = 1.05
BATCH_SIZE = 8
LENGTHS = (4, 120)  # words of a row, which have about two tokens each
MODEL = EmbeddedModelConfig(
    hidden_size=128, num_layers=2, num_heads=2, intermediate_size=256,
    vocab_size=2048, max_positions=512,
)  # fmt: skip
WORDS = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "bdfgklmnprst"]


@dataclass
class Peaks(Observer):
    """The peak of this process after some steps, in bytes, since the training began."""

    at: tuple[int, ...]
    peaks: dict[int, int] = field(default_factory=dict)
    lengths: set[int] = field(default_factory=set)
    _tokens: int = 0

    def train_start(self, state: TrainingState) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on

    def step_end(self, state: TrainingState) -> None:
        self.lengths.add(state.num_tokens - self._tokens)
        self._tokens = state.num_tokens
        if state.step in self.at:
            self.peaks[state.step] = peak_bytes()


def peak_bytes() -> int:
    """VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def write_rows(path: Path, count: int) -> None:
    draw = random.Random(0)
    rows = ({"text": " ".join(draw.choices(WORDS, k=draw.randint(*LENGTHS)))} for _ in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def measure(at: tuple[int, ...], precision: Literal["fp32", "bf16"], folder: Path) -> Peaks:
    """The peaks after some steps, of a training that sees no row twice."""
    num_steps = at[-1]
    write_rows(folder / "rows.jsonl", num_steps * BATCH_SIZE)
    peaks = Peaks(at)
    trainer = EnhancedTrainer(
        ModelConfig(embedded=MODEL),
        TrainingConfig(max_steps=num_steps, batch_size=BATCH_SIZE, mixed_precision=precision),
        DataConfig(
            path=str(folder / "rows.jsonl"), max_length=512, validation_split=0.0, num_workers=0
        ),
        device="cpu",
        cache_config=CacheConfig(directory=str(folder / "cache")),
        hooks=[peaks],
    )
    trainer.train()
    return peaks


def page(peaks: Peaks, precision: str) -> tuple[str, float]:
    """The page, and the last peak as a multiple of the first."""
    first, last = (peaks.peaks[step] for step in (peaks.at[0], peaks.at[-1]))
    ratio = last / first
    rows = [(f"{step:,}", f"{peaks.peaks[step] / 1e6:.0f} MB") for step in peaks.at]
    text = (
        "# Memory over many shapes\n\n"
        f"`python -m benchmarks.memory_growth`: a tiny model, {precision} on a CPU, rows of random"
        f" lengths; {len(peaks.lengths)} different numbers of tokens in {peaks.at[-1]:,} steps."
        f" The last peak is {ratio:.3f} times the first (at most {MOST_RATIO})."
        f" {sentence(environment())}\n\n{table(('steps', 'peak of the process'), rows)}"
    )
    return text, ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the page")
    arguments = parser.parse_args()
    if arguments.steps <= EARLY_STEPS:
        parser.error(f"--steps {arguments.steps}: more than {EARLY_STEPS}, which are compared with")
    between = (step for step in BETWEEN if step < arguments.steps)
    at = (EARLY_STEPS, *between, arguments.steps)
    with tempfile.TemporaryDirectory() as folder:
        peaks = measure(at, arguments.precision, Path(folder))
    text, ratio = page(peaks, arguments.precision)
    publish(text, arguments.write)
    return 0 if ratio <= MOST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
