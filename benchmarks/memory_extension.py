"""The extension `memory` on what no context and no weights can hold.

    python -m benchmarks.memory_extension [--seeds 3]

Rows come in a stream, each seen once. One states a fact ("set ba ku" -> "G": two of 60 syllables,
one of 16 letters, by chance); another one, about 100 to 200 rows later, asks for it ("get ba ku").
The held-out rows ask for the facts of the last 100 rows, which no training row has asked for. The
measure, named before anything was trained: the share of them whose letter is the model's first
choice. By chance that is 1/16.

Three models of the same size, trained alike: with the memory; with a perceptron of as many weights
in its place; and with the slots of the memory alone, without a store. Of the first one the letters
in its store are then exchanged between rows, and it is measured once more.

Prints one JSON line.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch.utils.hooks import RemovableHandle

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.json_text import JsonObject
from infrastructure.features.key_value_memory.memory import KeyValueMemory
from infrastructure.models import added_modules
from infrastructure.models.added_modules import (
    AddedModule,
    decoder_layers,
    hidden_size,
    register_added_module,
)
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Extension

SYLLABLES = [c + v for c in "bdfgklmnprstvwz" for v in "aeiu"]
LETTERS = "ABCDEFGHIJKLMNOP"
NUM_TRAINED, NUM_HELD_OUT = 3000, 100
LEAST_GAP = 100  # rows between a fact and its question; at most twice as many
WIDTH, LAYER = 64, 1
MEMORY = {"layer": LAYER, "slots": 64, "heads": 1, "width": 64, "store": 1024}
PERCEPTRON = "benchmarks.memory_extension:PerceptronExtension"
ARMS = ("memory", "perceptron", "slots alone")


@register_added_module
class Perceptron(AddedModule):
    """As many weights as a memory, at the same place and behind the same gate; reads nothing."""

    kind = "perceptron"

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(hidden)
        self.inner = torch.nn.Linear(hidden, width, bias=False)
        self.output = torch.nn.Linear(width, hidden, bias=False)
        self.gate = torch.nn.Parameter(torch.zeros(hidden))

    @classmethod
    def build(cls, model: torch.nn.Module, facts: JsonObject) -> Self:
        return cls(hidden_size(model), int(str(facts["width"])))

    @property
    def facts(self) -> JsonObject:
        return {"width": self.inner.out_features}

    def connect(self, model: torch.nn.Module) -> Sequence[RemovableHandle]:
        return [decoder_layers(model)[LAYER].register_forward_hook(self._after_layer)]

    def _after_layer(self, _layer: torch.nn.Module, _given: object, hidden: Any) -> Any:
        made = self.output(F.gelu(self.inner(self.norm(hidden))))
        return hidden + self.gate * made


class PerceptronExtension(Extension):
    """Attaches one that is at least as large as the memory."""

    name = Perceptron.kind
    adds_weights = True

    def __init__(self, trainer: Any) -> None: ...

    def attach(self, model: torch.nn.Module) -> None:
        memory = KeyValueMemory.build(model, dict(MEMORY))
        left = sum(p.numel() for p in memory.parameters()) - 2 * WIDTH  # norm and gate
        facts: JsonObject = {"width": -(-left // (2 * WIDTH))}
        added_modules.attach(model, Perceptron.build(model, facts))

    def detach(self, model: torch.nn.Module) -> None:
        added_modules.detach(model, self.name)


def write_rows(folder: Path, seed: int, num_trained: int = NUM_TRAINED) -> tuple[Path, Path]:
    """The stream, and the held-out questions."""
    draw = random.Random(seed)
    pairs = [(a, b) for a in SYLLABLES for b in SYLLABLES]
    facts = [
        (f"{a} {b}", draw.choice(LETTERS))
        for a, b in draw.sample(pairs, num_trained + NUM_HELD_OUT)
    ]
    placed = []
    for index, (key, letter) in enumerate(facts):
        placed.append((2 * index, f"set {key}", letter))
        if index < num_trained:  # odd places are for questions
            later = LEAST_GAP + 2 * draw.randrange(LEAST_GAP // 2) + 1
            placed.append((2 * index + later, f"get {key}", letter))
    stream = [{"prompt": prompt, "completion": letter} for _, prompt, letter in sorted(placed)]
    held_out = [{"prompt": f"get {k}", "completion": letter} for k, letter in facts[num_trained:]]
    for name, rows in (("stream.jsonl", stream), ("held_out.jsonl", held_out)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "stream.jsonl", folder / "held_out.jsonl"


def trainer_of(
    folder: Path, arm: str, seed: int, num_trained: int = NUM_TRAINED
) -> EnhancedTrainer:
    """Everything but what is attached is the same in each arm."""
    stream, held_out = write_rows(folder, seed, num_trained)
    extension = PERCEPTRON if arm == "perceptron" else "memory"
    memory = {**MEMORY, "store": 0} if arm == "slots alone" else MEMORY
    sizes = {"hidden_size": WIDTH, "num_layers": 2, "num_heads": 4}
    sizes |= {"intermediate_size": 2 * WIDTH, "vocab_size": 400, "max_positions": 32}
    return EnhancedTrainer(
        ModelConfig(name="embedded", embedded=sizes),
        TrainingConfig(
            enabled_extensions=[extension],
            learning_rate=3e-4,
            extension_learning_rate=3e-3,
            batch_size=16,
            num_epochs=1,
            warmup_steps=10,
            scheduler_type="constant",
            mixed_precision="fp32",
            metrics_sinks=[],
            validation_interval=None,
            seed=seed,
            **({} if extension == PERCEPTRON else {"memory": memory}),
        ),
        DataConfig(
            path=str(stream),
            eval_path=str(held_out),
            max_length=32,
            num_workers=0,
            streaming=True,
            buffer_size=1,  # in the order of the file
        ),
        device="cpu",
        cache_config=CacheConfig(directory=str(folder / "cache")),
    )


def share_right(trainer: EnhancedTrainer) -> float:
    """Of the held-out questions, those whose letter is the model's first choice."""
    model, adapter = trainer.initialize_model().eval(), trainer.adapter
    assert adapter.tokenizer is not None
    end = adapter.tokenizer.eos_token_id
    right: list[bool] = []

    def note(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        is_letter = targets != end
        right.extend((logits.argmax(dim=-1) == targets)[is_letter].tolist())
        return torch.zeros(len(targets))

    adapter.metrics = {"right": note}  # type: ignore[attr-defined]
    for examples in trainer.initialize_data().evaluation_batches(50):
        adapter.sum_metrics(model, adapter.prepare_batch(examples))
    assert len(right) == NUM_HELD_OUT
    return statistics.mean(right)


def exchange(trainer: EnhancedTrainer, seed: int) -> None:
    """Give each stored letter to another row's state."""
    memory = added_modules.added_modules(trainer.initialize_model())["memory"]
    assert isinstance(memory, KeyValueMemory)
    assert trainer.adapter.tokenizer is not None
    is_letter = memory.store_tokens != trainer.adapter.tokenizer.eos_token_id
    places = is_letter.nonzero().squeeze(1)
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    memory.store_tokens[places] = memory.store_tokens[places[order]]


def measure(seed: int, num_trained: int = NUM_TRAINED, arms: Sequence[str] = ARMS) -> JsonObject:
    """One seed: weights, seconds and the share of right letters of each arm, in percent."""
    results: JsonObject = {}
    for arm in arms:
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_of(Path(folder), arm, seed, num_trained)
            started = time.perf_counter()
            trainer.train()
            results[arm] = {
                "weights": sum(p.numel() for p in trainer.initialize_model().parameters()),
                "seconds": round(time.perf_counter() - started, 1),
                "right_percent": round(100 * share_right(trainer), 1),
            }
            if arm == "memory":
                exchange(trainer, seed)
                results["memory exchanged"] = {
                    "right_percent": round(100 * share_right(trainer), 1)
                }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    chance = round(100 / len(LETTERS), 2)
    print(json.dumps({"chance_percent": chance, "seeds": [measure(seed) for seed in seeds]}))


if __name__ == "__main__":
    main()
