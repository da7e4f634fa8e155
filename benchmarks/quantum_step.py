"""What data selection is worth: the same steps and the same time, on chosen examples and others.

    python -m benchmarks.quantum_step train.jsonl
        [--seeds 8] [--orders 2] [--steps 120] [--pool 600]

`train.jsonl` has a `question` and an `answer` a line (GSM8K does). A tiny Llama that has read other
English learns to answer, on a pool that is clean or half spoiled; examples are chosen once, before
training. Every way to choose trains with as many rows a step, at the same learning rate, and in the
same orders of the pool, where what is left out is passed over: an order alone moves a loss by 0.02.
Time is processor time of this process: a selection's is paid in steps of its run. Prints one JSON
line: held-out losses after all steps (`steps`), the lowest until then (`best`) and the lowest in
the same time (`time`), each the mean over orders; then differences with 95% intervals over seeds.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from benchmarks.selection_pools import Rows, make_rows, off_topic_rows, read_questions, tokenized
from benchmarks.turns import interval
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.quantum.config import QuantumConfig
from infrastructure.features.quantum.problems.data_selection import DataSelection
from infrastructure.features.quantum.solving.quantum_step import quantum_solve
from infrastructure.features.quantum.training.per_example_gradients import example_gradients
from infrastructure.models.tokenizer import train_tokenizer
from infrastructure.training.core.precision import choose_precision
from infrastructure.training.model_adapters import get_model_adapter
from infrastructure.training.model_adapters.base_adapter import ModelAdapter

VOCABULARY, MAX_LENGTH, BATCH_SIZE = 512, 96, 8
LEARNING_RATE, WARMUP_STEPS = 2e-3, 10
PRETRAINING_STEPS = 300
EVALUATE_EVERY = 20
SEARCH = "quantum"
RESOURCES = QuantumConfig(solver="dense_annealer", timeout=4)
FP32 = choose_precision("fp32", torch.device("cpu"))

Examples = list[Any]


@dataclass
class Trained:
    """Held-out loss per token by the number of steps, and what a step took in CPU seconds."""

    losses: dict[int, float]
    step_seconds: float

    def after(self, steps: float) -> float:
        """The loss that had been reached by then, on a line between two measurements."""
        known = sorted(self.losses)
        return float(np.interp(steps, known, [self.losses[step] for step in known]))

    def best(self, steps: float) -> float:
        """The lowest loss until then: what one would have kept."""
        measured = [loss for at, loss in self.losses.items() if at <= steps]
        return min([self.after(steps), *measured])


def save_model(folder: Path, tokenizer: Any) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load(folder: Path) -> ModelAdapter:
    adapter = get_model_adapter("standard", ModelConfig(name=str(folder)), TrainingConfig(), "cpu")
    adapter.data_config = DataConfig(max_length=MAX_LENGTH, packing=False)
    adapter.initialize_model()
    return adapter


def model_of(adapter: ModelAdapter) -> Any:
    assert adapter.model is not None
    return adapter.model


def batches(pool: Examples, chosen: Collection[int], seed: int) -> Iterator[Examples]:
    """Without end, each chosen example once an epoch, in an order of the whole pool."""
    random, kept, waiting = np.random.default_rng(seed), set(chosen), []
    while True:
        while len(waiting) < BATCH_SIZE:
            waiting += [pool[i] for i in random.permutation(len(pool)) if i in kept]
        yield waiting[:BATCH_SIZE]
        waiting = waiting[BATCH_SIZE:]


def held_out_loss(adapter: ModelAdapter, examples: Examples) -> float:
    total, items = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(examples), 32):
            batch = adapter.prepare_batch(examples[start : start + 32])
            output = adapter.compute_loss(model_of(adapter).eval(), batch)
            total, items = total + float(output.loss_sum), items + output.num_items
    return total / items


def train(
    adapter: ModelAdapter, source: Iterator[Examples], steps: int, held_out: Examples
) -> Trained:
    """AdamW at a constant rate, so that the loss after fewer steps is that of a shorter run."""
    model = model_of(adapter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses = {0: held_out_loss(adapter, held_out)} if held_out else {}
    spent = 0.0
    for step in range(1, steps + 1):
        started = time.process_time()
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, step / WARMUP_STEPS)
        output = adapter.compute_loss(model.train(), adapter.prepare_batch(next(source)))
        (output.loss_sum / output.num_items).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        spent += time.process_time() - started
        if held_out and (step % EVALUATE_EVERY == 0 or step == steps):
            losses[step] = held_out_loss(adapter, held_out)
    return Trained(losses, spent / steps)


@dataclass(frozen=True)
class Case:
    """One run: which pool, the share of it that is trained on, who chooses, and for what target."""

    pool: str
    budget: float
    chosen_by: str
    target: str = "held-out rows"

    def __str__(self) -> str:
        target = "" if self.target == "held-out rows" else f" for the {self.target}"
        return f"{self.pool}, {self.budget:.0%}, {self.chosen_by}{target}"


CASES = [
    Case("dirty", 1.0, "all"),
    *(Case("dirty", 0.1, answer) for answer in ("random", "top_relevance", "greedy", SEARCH)),
    *(Case("dirty", 0.5, answer) for answer in ("random", "greedy", SEARCH)),
    *(Case("dirty", 0.9, answer) for answer in ("random", "greedy", SEARCH)),
    Case("dirty", 0.9, SEARCH, "pool"),
    Case("clean", 1.0, "all"),
    *(Case("clean", 0.1, answer) for answer in ("random", "greedy", SEARCH)),
    *(Case("clean", 0.9, answer) for answer in ("random", SEARCH)),
    Case("clean", 0.9, SEARCH, "pool"),
]


class Selections:
    """What is chosen of one pool, and what choosing takes in CPU seconds."""

    def __init__(self, adapter: ModelAdapter, pool: Examples, target: Examples, seed: int) -> None:
        self.pool, self.seed = pool, seed
        started = time.process_time()
        self.gradients = self._gradients(adapter, pool)
        self.pool_seconds = time.process_time() - started
        self.target = self._gradients(adapter, target)
        self.gradient_seconds = time.process_time() - started

    def _gradients(self, adapter: ModelAdapter, examples: Examples) -> Any:
        by_length = sorted(range(len(examples)), key=lambda i: len(examples[i].input_ids))
        pieces = [by_length[i : i + 32] for i in range(0, len(examples), 32)]
        rows = ([examples[i] for i in piece] for piece in pieces)
        gradients = example_gradients(model_of(adapter), adapter, rows, precision=FP32)
        return gradients[np.argsort(by_length)]

    def choose(self, case: Case) -> tuple[list[int], float, dict[str, float]]:
        """Numbers of the chosen rows, CPU seconds, and distances to the target, of this answer and
        of the plain ones."""
        k, n = round(case.budget * len(self.pool)), len(self.pool)
        if case.chosen_by in ("all", "random"):
            return np.random.default_rng(self.seed).permutation(n)[:k].tolist(), 0.0, {}
        started = time.process_time()
        target = None if case.target == "pool" else self.target
        problem = DataSelection(range(n), self.gradients, k, target=target, seed=self.seed)
        if case.chosen_by == SEARCH:
            sample = quantum_solve(problem, RESOURCES, seed=self.seed).sample
        else:
            sample = problem.alternatives()[case.chosen_by]
        seconds = self.gradient_seconds + time.process_time() - started
        answers = {"own": sample, **problem.alternatives()}
        distances = {
            name: problem.energy_of(problem.indices(answer)) for name, answer in answers.items()
        }
        return problem.decode(sample), seconds, distances


def run_seed(
    adapter: ModelAdapter,
    weights: dict[str, Any],
    rows: dict[str, Rows],
    seed: int,
    steps: int,
    num_orders: int,
) -> list[Any]:
    """All cases of one seed."""
    results, selections, model = [], {}, model_of(adapter)
    for case in CASES:
        of = rows[case.pool]
        pool, target, held_out = (
            tokenized(part, adapter.tokenizer, MAX_LENGTH)
            for part in (of.pool, of.target, of.held_out)
        )
        if case.pool not in selections:
            model.load_state_dict(weights)
            selections[case.pool] = Selections(adapter, pool, target, seed)
        chosen, seconds, distances = selections[case.pool].choose(case)
        runs = []
        for order in range(num_orders):
            model.load_state_dict(weights)
            source = batches(pool, chosen, seed * num_orders + order)
            runs.append(train(adapter, source, steps, held_out))
        step_seconds = mean(run.step_seconds for run in runs)
        kinds = [of.pool[i].kind for i in chosen]
        results.append(
            {
                "case": str(case),
                "seed": seed,
                "steps": mean(run.after(steps) for run in runs),
                "best": mean(run.best(steps) for run in runs),
                "time": mean(run.best(steps - seconds / step_seconds) for run in runs),
                "seconds": seconds,
                "pool_seconds": selections[case.pool].pool_seconds,
                "step_seconds": step_seconds,
                "losses": [run.losses for run in runs],
                "distances": distances,
                "good": mean(kind in ("clean", "copy") for kind in kinds),
            }
        )
        print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    return results


def prepared(folder: Path, questions: Sequence[Any], others: Sequence[Any]) -> ModelAdapter:
    """With a model that has read most of the off-topic rows."""
    texts = [f"{row.prompt} {row.answer}" for row in [*questions[:1500], *others[:500]]]
    tokenizer = train_tokenizer(texts, VOCABULARY)
    save_model(folder, tokenizer)
    adapter = load(folder)
    read = tokenized(others, tokenizer, MAX_LENGTH)
    train(adapter, batches(read, range(len(read)), seed=0), PRETRAINING_STEPS, [])
    return adapter


def summary(results: list[Any]) -> dict[str, Any]:
    """Of each case the mean over seeds and, against the random choice of the same size (the whole
    pool where there is none), the mean difference with its 95% interval; below 0 is better."""
    by_case: dict[str, list[Any]] = {}
    for one in results:
        by_case.setdefault(one["case"], []).append(one)
    summaries = {}
    for case in map(str, CASES):
        ones = by_case[case]
        summaries[case] = {
            name: round(mean(one[name] for one in ones), 4)
            for name in ("steps", "best", "time", "seconds", "good")
        }
        summaries[case]["distances"] = {
            name: round(mean(one["distances"][name] for one in ones), 6)
            for name in ones[0]["distances"]
        }
        for name in ("steps", "best", "time"):
            for yardstick in yardsticks(case):
                pairs = zip(ones, by_case[yardstick], strict=True)
                gaps = [one[name] - other[name] for one, other in pairs]
                low, high = interval(gaps)
                summaries[case][f"{name} minus {yardstick}"] = [
                    round(value, 4) for value in (mean(gaps), low, high)
                ]
    return summaries


def yardsticks(case: str) -> list[str]:
    """What a case is compared with: the whole pool, the random choice, the greedy one."""
    pool, budget, _ = case.split(", ", 2)
    names = [f"{pool}, 100%, all", f"{pool}, {budget}, random", f"{pool}, {budget}, greedy"]
    return [name for name in names if name != case and name in map(str, CASES)]


def measured(path: Path, num_seeds: int, num_orders: int, steps: int, size: int) -> dict[str, Any]:
    questions, others = read_questions(path), off_topic_rows()
    read_before, unread = others[: 2 * len(others) // 3], others[2 * len(others) // 3 :]
    results: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        adapter = prepared(Path(folder), questions, read_before)
        weights = {name: w.clone() for name, w in model_of(adapter).state_dict().items()}
        for seed in range(num_seeds):
            rows = {
                name: make_rows(questions, unread, size=size, is_dirty=name == "dirty", seed=seed)
                for name in ("dirty", "clean")
            }
            results += run_seed(adapter, weights, rows, seed, steps, num_orders)
    per_row = mean(one["step_seconds"] for one in results) / BATCH_SIZE
    ratio = mean(one["pool_seconds"] for one in results) / size / per_row
    return {"gradients_of_training": round(ratio, 3), "cases": summary(results)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--orders", type=int, default=2)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--pool", type=int, default=600)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    sizes = {name: getattr(chosen, name) for name in ("seeds", "orders", "steps", "pool")}
    results = measured(chosen.path, *sizes.values())
    print(json.dumps({**sizes, **results}))


if __name__ == "__main__":
    main()
