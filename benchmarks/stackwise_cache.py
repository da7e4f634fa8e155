"""How much faster a unit trains on cached activations, by depth, beside the formula.

    python -m benchmarks.stackwise_cache [--layers 24] [--epochs 5] [--steps 4]

A model with Llama-3.1-8B's proportions, its widths and vocabulary divided by 32, trains a layer at
a time, next-token, without and with a cache in fp32: one step of each in turn. Seconds are the
processor's, of this process alone, since the machine may be busy; they hold everything that a phase
costs: building the cache, hashing the trunk, reading, the step. Losses must be the same bits.

Beforehand the parts are measured, in a training of one epoch without a cache: f, a forward pass of
one layer of the trunk, is what a step takes longer on each further layer; a is what is left of it,
the unit and the head. A unit on s layers is then to be faster by (a + s f) / (a + s f / E) over E
epochs; `off` is measured / foretold - 1. `depth_for_4_at_20` is the number of trunk layers from
which that formula gives 4 over 20 epochs, here by the measured parts, and for the published models
by counting multiplications: 3 forward passes of a layer for the unit that trains, 2 of the frozen
head for every supervised token. Prints one JSON line.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.stackwise_model import PUBLISHED, Shape, save_model, trainer_of
from benchmarks.turns import Clock, take_turns
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer

SHAPE = Shape("Llama-3.1-8B", divisor=32, num_layers=24, length=64, batch_size=16, steps=4)
MOST_OFF, LEAST_AT_THE_TOP = 0.1, 2.0


class StepClock(Observer):
    """Marks the clock after each step, and keeps the losses."""

    name = "step clock"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.losses: list[float] = []

    def step_end(self, state: TrainingState) -> None:
        self.losses.append(state.loss)
        self.clock.num_tokens = state.num_tokens
        self.clock.mark()


def train(
    folder: Path, shape: Shape, num_epochs: int, is_cached: bool, clock: Clock
) -> list[float]:
    """Train layer by layer; the loss of each step."""
    hook = StepClock(clock)
    settings: dict[str, Any] = {
        "mode": "layerwise",
        "num_epochs": num_epochs,
        "cache_activations": is_cached,
        "mixed_precision": False,
    }
    if is_cached:
        settings |= {"cache_dtype": "fp32", "cache_dir": str(folder / "activations")}
    trainer_of(folder, shape, settings, hooks=[hook]).train()
    return hook.losses


def by_phase(seconds: Sequence[float], num_phases: int) -> list[list[float]]:
    size = len(seconds) // num_phases
    return [list(seconds[i * size : (i + 1) * size]) for i in range(num_phases)]


def parts(step_seconds: Sequence[float]) -> tuple[float, float]:
    """a and f: a line through the seconds of a step by the depth of its trunk, from 0.

    The first phase trains the embedding, too, and is left out.
    """
    depths = np.arange(1, len(step_seconds))
    f, a = np.polyfit(depths, step_seconds[1:], 1)
    return float(a), float(f)


def predicted(a: float, f: float, depth: int, num_epochs: int) -> float:
    """How many times faster a unit on `depth` layers trains."""
    return (a + depth * f) / (a + depth * f / num_epochs)


def depth_for(factor: float, num_epochs: int, a_over_f: float) -> float:
    """The number of trunk layers from which it is that factor."""
    return a_over_f * (factor - 1) / (1 - factor / num_epochs)


def counted_ratio(values: dict[str, Any]) -> float:
    """a / f of a model by its weights: a matrix costs what it has of them."""
    width, inner = values["hidden_size"], values["intermediate_size"]
    kv_share = values["num_key_value_heads"] / values["num_attention_heads"]
    layer = width * width * (2 + 2 * kv_share) + 3 * width * inner
    return float(3 + 2 * values["vocab_size"] * width / layer)


def measured(shape: Shape, num_epochs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder, shape)
        num_layers = shape.num_layers or PUBLISHED[shape.model]["num_hidden_layers"]
        before = {"recomputed": partial(train, folder, shape, 1, False)}
        num_steps = num_layers * shape.steps
        turns = take_turns(before, num_steps, "beforehand", time.process_time)
        phases = by_phase(turns["recomputed"].seconds, num_layers)
        a, f = parts([median(one[1:]) for one in phases])
        systems = {
            name: partial(train, folder, shape, num_epochs, name == "cached")
            for name in ("recomputed", "cached")
        }
        num_steps *= num_epochs
        turns = take_turns(systems, num_steps, f"{num_epochs} epochs", time.process_time)
    seconds = {
        name: [sum(one) for one in by_phase(system.seconds, num_layers)]
        for name, system in turns.items()
    }
    losses = [system.result for system in turns.values()]
    rows = []
    for depth in range(1, num_layers):
        speedup = seconds["recomputed"][depth] / seconds["cached"][depth]
        wanted = predicted(a, f, depth, num_epochs)
        rows.append(
            {
                "depth": depth,
                "recomputed_seconds": round(seconds["recomputed"][depth], 3),
                "cached_seconds": round(seconds["cached"][depth], 3),
                "speedup": round(speedup, 3),
                "foretold": round(wanted, 3),
                "off": round(speedup / wanted - 1, 3),
            }
        )
    ratios = {"measured": a / f, **{name: counted_ratio(v) for name, v in PUBLISHED.items()}}
    return {
        "a_seconds": a,
        "f_seconds": f,
        "rows": rows,
        "largest_loss_difference": max(
            abs(one - other) for one, other in zip(*losses, strict=True)
        ),
        "a_over_f": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "depth_for_4_at_20": {
            name: round(depth_for(4, 20, ratio), 1) for name, ratio in ratios.items()
        },
    }


def missed_goals(figures: dict[str, Any]) -> list[str]:
    """Which numbers are not as good as they were to be."""
    rows = figures["rows"]
    missed = [f"depth {row['depth']}: off" for row in rows if abs(row["off"]) > MOST_OFF]
    if rows[-1]["speedup"] < LEAST_AT_THE_TOP:
        missed.append("the last layer's speed-up")
    if figures["largest_loss_difference"] > 0:
        missed.append("losses differ")
    return missed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=SHAPE.num_layers)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=SHAPE.steps, help="of an epoch")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    shape = Shape(
        SHAPE.model,
        SHAPE.divisor,
        options.layers,
        SHAPE.length,
        SHAPE.batch_size,
        options.steps,
    )
    figures = measured(shape, options.epochs)
    missed = missed_goals(figures)
    summary = {"benchmark": "stackwise_cache", "epochs": options.epochs, **figures}
    print(json.dumps({**summary, "missed": len(missed), "which": missed}))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
