"""What stack-wise training is worth: held-out losses at equal compute, beside its rivals.

    python -m benchmarks.stackwise_quality gsm8k/train.jsonl [--seeds 3] [--steps 600]
        [--results stackwise_quality.jsonl]
    python -m benchmarks.stackwise_quality --table stackwise_quality.jsonl

A Llama of 8 layers and 0.46 M weights learns the text of GSM8K (`question` and `answer` a line),
and the embedded sample tasks: from new weights, and from a model that has read other English and
the other of the two; fine-tuning once with many rows and once with 64. The ways to train are in
`stackwise_arms`. Each has the compute of `--steps` steps of full training, fine-tuning of half and
with few rows of a sixth as many, where its name does not say less: counted in matrix products,
layer by layer, as they are run, without a cache. Its learning rate is the best of three, tried
beforehand on GSM8K with as much compute and another seed. Every result is appended
to the file as it comes, and a run that was broken off goes on there. Memory is counted in a
training of two steps in each phase: the most that tensors took, and of that the most that was kept
for backward passes. It is counted again with smaller micro-batches, whose gradients make the same
steps: so each way has a loss at equal memory, too, if it fits there at all.

Then what a step takes of the processor (the model of `stackwise_memory`): full, LoRA, and low-rank
matrices beside weights in nf_fp8. Prints one JSON line; `--table` prints the tables of
`results/stackwise.md`.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch

from benchmarks.selection_pools import Row, off_topic_rows, read_questions, tokenized
from benchmarks.stackwise_arms import (
    ARMS,
    INNER,
    MAX_LENGTH,
    NUM_LAYERS,
    VOCABULARY,
    WIDTH,
    Arm,
    Pool,
    build,
    memory,
    run,
)
from benchmarks.stackwise_cache import StepClock
from benchmarks.stackwise_model import Shape, save_model, trainer_of
from benchmarks.turns import Clock, take_turns
from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.models.tokenizer import train_tokenizer
from infrastructure.training.model_adapters.base_adapter import ModelAdapter

RATES, TUNING_SEED = (1e-3, 3e-3, 1e-2), 1000
NUM_POOL, NUM_HELD_OUT = 1600, 160
READ_BEFORE_STEPS = 1500  # of the model that fine-tuning begins with
SHARES = {"scratch": 1.0, "fine-tuning": 1 / 2, "few rows": 1 / 6}  # of the compute
NUM_FEW = 64
SAMPLES = Path(__file__).parents[1] / "infrastructure/data/samples"
DATA = ("GSM8K", "sample tasks")
MOST_GROWTH_LOSS, MOST_LOPT_MEMORY = 1.01, 0.75
MICRO_BATCHES = (8, 4, 2, 1)
BUDGETS = (1.0, 0.75, 0.5, 0.4, 0.35, 0.3, 0.25)  # of the tensors of full training

Key = tuple[str, ...]


class Results:
    """Results by key, in a file of JSON lines that grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        self.known: dict[Key, Any] = {tuple(k): v for k, v in map(json.loads, lines)}

    def get(self, key: Key, measure: Callable[[], Any]) -> Any:
        """What is known, or else is measured now."""
        if key not in self.known:
            self.known[key] = measure()
            line = json.dumps([key, self.known[key]])
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            print(line, file=sys.stderr, flush=True)
        return self.known[key]


def sample_rows(name: str) -> list[Row]:
    rows = map(json.loads, (SAMPLES / name).read_text("utf-8").splitlines())
    return [Row(row["prompt"], row["completion"]) for row in rows]


class Workbench:
    """Tokenizer, models to begin with, and data.

    Args:
        folder: for models.
        questions: rows with answers.
    """

    def __init__(self, folder: Path, questions: Sequence[Row]) -> None:
        self.folder, self.questions = folder, questions
        self.others = off_topic_rows()
        self.samples = {name: sample_rows(f"{name}.jsonl") for name in ("train", "heldout")}
        some = [*questions[:1000], *self.others[:500], *self.samples["train"][:500]]
        self.tokenizer = train_tokenizer([f"{r.prompt} {r.answer}" for r in some], VOCABULARY)

    def new_model(self, seed: int, num_layers: int) -> Path:
        """The folder of a model with new weights."""
        from transformers import LlamaConfig, LlamaForCausalLM

        folder = self.folder / f"new-{seed}-{num_layers}"
        if not folder.exists():
            torch.manual_seed(seed)
            config = LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=WIDTH,
                intermediate_size=INNER,
                num_hidden_layers=num_layers,
                num_attention_heads=4,
                num_key_value_heads=4,
                max_position_embeddings=MAX_LENGTH,
                tie_word_embeddings=True,
                pad_token_id=self.tokenizer.pad_token_id,
            )
            LlamaForCausalLM(config).save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
        return folder

    def trained_model(self, steps: int, data: str) -> Path:
        """The folder of a model that has read other English, and the data that is not `data`.

        So it has met digits and all else that the rows to come are made of, not their kind.
        """
        folder = self.folder / f"trained for {data}"
        if not folder.exists():
            others = self.samples["train"] if data == DATA[0] else self.questions[NUM_HELD_OUT:]
            rows = [*self.others, *others[: len(self.others)]]
            source = pool_of(rows, rows[:8], everything=True, seed=0)
            model = self.new_model(0, NUM_LAYERS)
            trainer = build(Arm("full"), model, source, seed=0, rate=3e-3, steps=steps)
            trainer.train()
            adapter: ModelAdapter = trainer.adapter
            adapter.save(folder)
        return folder

    def model(self, kind: str, data: str, arm: Arm, seed: int, read_before: int) -> Path:
        if kind == "scratch":
            return self.new_model(seed, arm.num_layers)
        return self.trained_model(read_before, data)

    def data(self, name: str, seed: int, count: int = NUM_POOL) -> Callable[[Any, int], Pool]:
        """Other rows for each seed; held-out rows are the same for all."""
        if name == "GSM8K":
            held_out, rest = self.questions[:NUM_HELD_OUT], self.questions[NUM_HELD_OUT:]
        else:
            held_out, rest = self.samples["heldout"], self.samples["train"]
        chosen = np.random.default_rng(seed).permutation(len(rest))[:count]
        rows = [rest[i] for i in chosen]
        return pool_of(rows, held_out, everything=name == "GSM8K", seed=seed)


def pool_of(
    rows: Sequence[Row], held_out: Sequence[Row], *, everything: bool, seed: int
) -> Callable[[Any, int], Pool]:
    """`everything`: all tokens are learnt, not those of answers alone."""

    def make(tokenizer: Any, count: int) -> Pool:
        parts = [tokenized(part, tokenizer, MAX_LENGTH) for part in (rows, held_out)]
        if everything:
            parts = [[_all_learnt(example) for example in part] for part in parts]
        return Pool(parts[0], parts[1], count, seed)

    return make


def _all_learnt(example: TokenizedExample) -> TokenizedExample:
    return replace(example, supervised=np.arange(len(example.input_ids)) > 0)


def full_cost() -> float:
    """Of a step of full training, in forward passes of a layer for a batch."""
    head = VOCABULARY * WIDTH / (4 * WIDTH * WIDTH + 3 * WIDTH * INNER)
    return 3 * NUM_LAYERS + 3 * head


def measure_all(
    path: Path,
    results: Results,
    num_seeds: int,
    steps: int,
    read_before: int,
    kinds: Sequence[str] = tuple(ARMS),
) -> Iterator[tuple[Key, Any]]:
    """Everything, in an order in which what is there at any time is of use."""
    with tempfile.TemporaryDirectory() as name:
        bench = Workbench(Path(name), read_questions(path))
        budget = steps * full_cost()

        def train(kind: str, data: str, arm: Arm, seed: int, rate: float) -> Any:
            model = bench.model(kind, data, arm, seed, read_before)
            pool = bench.data(data, seed, NUM_FEW if kind == "few rows" else NUM_POOL)
            began = time.process_time()
            result = run(arm, model, pool, seed=seed, rate=rate, budget=SHARES[kind] * budget)
            return {**result, "rate": rate, "seconds": round(time.process_time() - began, 2)}

        best: dict[Key, float] = {}
        measured = {kind: ARMS[kind] for kind in kinds}
        for kind, arms in measured.items():
            for arm in arms if kind == memory_kind(kind) else []:
                key = (kind, "memory", arm.name)
                model = bench.model(kind, DATA[0], arm, 0, read_before)
                pool = bench.data(DATA[0], 0)
                yield key, results.get(key, lambda a=arm, m=model, p=pool: memory(a, m, p))
                for size in MICRO_BATCHES[1:]:
                    key = (kind, "memory", arm.name, str(size))
                    trial = arm, model, pool, size
                    yield key, results.get(key, lambda t=trial: memory(*t))
        for data in DATA:
            for seed in range(num_seeds):
                for kind, arms in measured.items():
                    for arm in arms:
                        if (kind, arm.name) not in best:
                            tried = {}
                            for rate in RATES:
                                key = (kind, "tuning", arm.name, str(rate), str(steps), "whole")
                                trial = kind, DATA[0], arm, TUNING_SEED, rate
                                tried[rate] = results.get(key, lambda t=trial: train(*t))
                            best[kind, arm.name] = min(tried, key=lambda r: tried[r]["loss"])
                        key = (kind, data, arm.name, str(seed), str(steps))
                        trial = kind, data, arm, seed, best[kind, arm.name]
                        yield key, results.get(key, lambda t=trial: train(*t))


def memory_kind(kind: str) -> str:
    """Whose memory is counted: that of fine-tuning does not depend on the number of rows."""
    return "fine-tuning" if kind == "few rows" else kind


def step_seconds(shape: Shape, num_steps: int) -> dict[str, float]:
    """Processor seconds of a step: full, LoRA, and low-rank matrices beside nf_fp8."""
    qlora = {"strategy": "end_to_end", "quantization_enabled": True, "qlora_enabled": True}
    ways: dict[str, tuple[dict[str, Any], LoraConfig | None]] = {
        "full": ({"strategy": "standard"}, None),
        "LoRA": ({"strategy": "finetune"}, LoraConfig()),
        "QLoRA": (qlora, None),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder, shape)

        systems = {
            name: partial(train_steps, folder, shape, num_steps, *options)
            for name, options in ways.items()
        }
        turns = take_turns(systems, num_steps, "a step", time.process_time)
    return {name: median(system.seconds[1:]) for name, system in turns.items()}


def train_steps(
    folder: Path,
    shape: Shape,
    num_steps: int,
    settings: dict[str, Any],
    lora: LoraConfig | None,
    clock: Clock,
) -> None:
    given = {**settings, "mixed_precision": False, "max_steps": num_steps}
    trainer_of(folder, shape, given, hooks=[StepClock(clock)], lora=lora).train()


def by_arm(known: dict[Key, Any], kind: str, data: str) -> dict[str, list[dict[str, Any]]]:
    """The results of each arm, a seed after the other."""
    results: dict[str, list[dict[str, Any]]] = {}
    for key, value in sorted(known.items()):
        if len(key) == 5 and key[:2] == (kind, data):
            results.setdefault(key[2], []).append(value)
    return {arm.name: results[arm.name] for arm in ARMS[kind] if arm.name in results}


def spread(losses: Sequence[float]) -> float:
    """Half of the distance from the lowest to the highest."""
    return (max(losses) - min(losses)) / 2


def tables(known: dict[Key, Any]) -> str:
    """In Markdown, one for each kind and data."""
    lines = []
    for kind in ARMS:
        for data in DATA:
            results = by_arm(known, kind, data)
            if not results:
                continue
            full = mean(one["loss"] for one in results["full"])
            lines += [
                f"### {kind}, {data}",
                "",
                "| way | held-out loss | against full | compute | steps | rate | tensors, MB"
                " | kept for backward, MB | seeds |",
                "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
            ]
            for name, ones in results.items():
                losses = [one["loss"] for one in ones]
                held = known.get((memory_kind(kind), "memory", name), {})
                sizes = [held.get(k, 0) / 1e6 for k in ("tensor_bytes", "activation_bytes")]
                lines.append(
                    f"| {name} | {mean(losses):.3f} ± {spread(losses):.3f}"
                    f" | {mean(losses) / full - 1:+.1%} | {mean(o['compute'] for o in ones):.2f}"
                    f" | {round(mean(o['steps'] for o in ones))} | {ones[0]['rate']:g}"
                    f" | {sizes[0]:.1f} | {sizes[1]:.1f} | {len(ones)} |"
                )
            lines.append("")
    return "\n".join(lines)


def tensor_bytes(known: dict[Key, Any], kind: str, name: str, size: int) -> int | None:
    """What an arm takes with micro-batches of `size`; None: it was not counted."""
    key: Key = (memory_kind(kind), "memory", name)
    key = key if size == MICRO_BATCHES[0] else (*key, str(size))
    counted = known.get(key)
    return None if counted is None else int(counted["tensor_bytes"])


def memory_tables(known: dict[Key, Any]) -> str:
    """In Markdown: the ways by their loss, the lowest first, and the largest micro-batch that each
    has in each budget of memory."""
    lines = []
    for kind in ARMS:
        full_bytes = tensor_bytes(known, kind, "full", MICRO_BATCHES[0])
        for data in DATA:
            results = by_arm(known, kind, data)
            if not results or full_bytes is None:
                continue
            budgets = [f"{budget:.2f}" for budget in BUDGETS]
            lines += [
                f"### {kind}, {data}",
                "",
                f"| way | held-out loss | {' | '.join(budgets)} |",
                f"| --- | --- |{' --- |' * len(budgets)}",
            ]
            loss = {name: mean(one["loss"] for one in ones) for name, ones in results.items()}
            for name in sorted(loss, key=lambda name: loss[name]):
                cells = [_largest_that_fits(known, kind, name, b * full_bytes) for b in BUDGETS]
                lines.append(f"| {name} | {loss[name]:.3f} | {' | '.join(cells)} |")
            lines.append("")
    return "\n".join(lines)


def _largest_that_fits(known: dict[Key, Any], kind: str, name: str, budget_bytes: float) -> str:
    """The largest micro-batch, or a dash."""
    for size in MICRO_BATCHES:
        taken = tensor_bytes(known, kind, name, size)
        if taken is not None and taken <= budget_bytes:
            return str(size)
    return "–"


def verdicts(known: dict[Key, Any]) -> dict[str, Any]:
    """The targets, with the numbers that decide them."""
    figures: dict[str, Any] = {}
    for data in DATA:
        scratch, tuned, few = (by_arm(known, kind, data) for kind in ARMS)
        loss = {name: mean(o["loss"] for o in ones) for name, ones in scratch.items()}
        growth = [name for name in loss if "one step" in name and "half" in name]
        if growth and "full" in loss:
            ratio = min(loss[name] for name in growth) / loss["full"]
            figures[f"{data}: one-step growth / full"] = round(ratio, 4)
            figures[f"{data}: one-step growth is within 1%"] = ratio <= MOST_GROWTH_LOSS
        for kind, ways in (("fine-tuning", tuned), ("few rows", few)):
            if {"full", "LoPT"} <= set(ways):
                losses = [one["loss"] for one in ways["full"]]
                gap = mean(one["loss"] for one in ways["LoPT"]) - mean(losses)
                figures[f"{data}, {kind}: LoPT - full"] = round(gap, 4)
                figures[f"{data}, {kind}: LoPT is within the seeds' spread"] = gap <= spread(losses)
            if ways:
                lowest = min(ways, key=lambda name: mean(one["loss"] for one in ways[name]))
                figures[f"{data}, {kind}: best"] = lowest
    held = [known.get(("fine-tuning", "memory", name)) for name in ("LoPT", "full")]
    if all(held):
        ratio = held[0]["activation_bytes"] / held[1]["activation_bytes"]
        figures["LoPT's activations / full"] = round(ratio, 3)
        figures["LoPT's activations are few"] = ratio <= MOST_LOPT_MEMORY
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, nargs="?")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600, help="of full training")
    parser.add_argument("--read-before", type=int, default=READ_BEFORE_STEPS)
    parser.add_argument("--kinds", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--results", type=Path, default=Path("stackwise_quality.jsonl"))
    parser.add_argument("--table", type=Path, help="print the tables of these results")
    options = parser.parse_args(arguments)
    if options.table:
        known = Results(options.table).known
        print(tables(known))
        print("## At equal memory\n")
        print(memory_tables(known))
        print(json.dumps(verdicts(known), indent=1))
        return 0
    if options.path is None:
        parser.error("give a file of questions and answers, as GSM8K has them")
    torch.set_num_threads(1)
    results = Results(options.results)
    given = (options.seeds, options.steps, options.read_before, options.kinds)
    for _ in measure_all(options.path, results, *given):
        pass
    seconds = results.get(("step",), lambda: step_seconds(Shape(length=64, batch_size=8), 6))
    summary = {"steps": options.steps, "seeds": options.seeds, "verdicts": verdicts(results.known)}
    print(json.dumps({"benchmark": "stackwise_quality", **summary, "step_seconds": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
