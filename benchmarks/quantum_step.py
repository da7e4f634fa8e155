"""What data selection is worth: the same steps and the same time, on chosen examples and others.

    python -m benchmarks.quantum_step train.jsonl [--seeds 5] [--steps 200] [--pool 600]

`train.jsonl` has a `question` and an `answer` a line (GSM8K does). A tiny Llama that has read other
English learns to answer, on a pool that is clean or half spoiled; examples are chosen once, before
training. Every way to choose trains with the same batches a step and the same learning rate. Time
is processor time of this process: a selection's is paid in steps of its run. Prints one JSON line.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from benchmarks.selection_pools import Rows, make_rows, off_topic_rows, read_questions, tokenized
from benchmarks.turns import interval
from infrastructure.config.data_config import DataConfig
from infrastructure.config.model_config import ModelConfig
from infrastructure.config.training_config import TrainingConfig
from infrastructure.quantum.problems.data_selection import DataSelection
from infrastructure.training.model_adapters import get_model_adapter
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.models.tokenizer import train_tokenizer
from infrastructure.training.precision import choose_precision
from infrastructure.training.quantum.example_gradients import example_gradients

VOCABULARY, MAX_LENGTH, BATCH_SIZE = 512, 96, 8
LEARNING_RATE, WARMUP_STEPS = 2e-3, 10
PRETRAINING_STEPS = 300
EVALUATE_EVERY = 20
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


def batches(examples: Examples, seed: int) -> Iterator[Examples]:
    """Without end, each example once an epoch; rows of a batch come from anywhere."""
    random, waiting = np.random.default_rng(seed), []
    while True:
        while len(waiting) < BATCH_SIZE:
            waiting += [examples[i] for i in random.permutation(len(examples))]
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
    adapter: ModelAdapter, examples: Examples, steps: int, seed: int, held_out: Examples
) -> Trained:
    """AdamW at a constant rate, so that the loss after fewer steps is that of a shorter run."""
    model = model_of(adapter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses = {0: held_out_loss(adapter, held_out)} if held_out else {}
    spent, source = 0.0, batches(examples, seed)
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
        if held_out and step % EVALUATE_EVERY == 0:
            losses[step] = held_out_loss(adapter, held_out)
    return Trained(losses, spent / steps)
