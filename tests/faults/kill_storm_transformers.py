"""G1's storm on transformers' Trainer: the same shape of script and the same kills, side by side.

    python -m tests.faults.kill_storm_transformers DIRECTORY [--kills 60]

A tiny Llama with dropout, accumulation of 3, a checkpoint every second step, two kept; the script
goes on with `resume_from_checkpoint=True` when there is any checkpoint, which is how its
documentation says to do so. `hard_failures`: trainings that raised when they went on, until
somebody removes the newest folder by hand, which this then does. `lost`: kills after which the
training went on from less than what had been there whole before. Prints one JSON line.
"""

import argparse
import logging
import os
import random
import shutil
import signal
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tests.faults.judge import print_figures
from tests.faults.kill_storm import in_child

NUM_EXAMPLES, NUM_STEPS, SAVE_STEPS = 64, 16, 2
LAST_FILE = "trainer_state.json"  # what its save writes last


@dataclass
class Outcome:
    """Counts over a whole storm."""

    kills: int = 0
    hard_failures: int = 0
    lost: int = 0
    finished: int = 0
    differing: int = 0


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Token ids that are a function of their number."""

    def __len__(self) -> int:
        return NUM_EXAMPLES

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(number)
        ids = torch.randint(64, (16,), generator=generator)
        return {"input_ids": ids, "labels": ids}


def make_trainer(directory: Path) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=32,
            attention_dropout=0.2,
        )
    )
    arguments = TrainingArguments(
        output_dir=str(directory),
        max_steps=NUM_STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        learning_rate=0.01,
        save_strategy="steps",
        save_steps=SAVE_STEPS,
        save_total_limit=2,
        logging_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_num_workers=0,
    )
    return Trainer(model=model, args=arguments, train_dataset=Rows())


def train(directory: Path) -> None:
    """Train to the end, from the newest checkpoint if there is any; leaves the weights."""
    trainer = make_trainer(directory)
    has_checkpoint = any(directory.glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint=True if has_checkpoint else None)
    weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    torch.save(weights, directory / "weights.part")
    (directory / "weights.part").rename(directory / "weights.pt")


def whole_checkpoints(directory: Path) -> dict[int, Path]:
    """The folders that a save came to the end of, by step."""
    folders = directory.glob("checkpoint-*")
    return {int(f.name.split("-")[1]): f for f in folders if (f / LAST_FILE).exists()}


def newest_folder(directory: Path) -> Path | None:
    """What it would go on from: the highest number, whole or not."""
    folders = list(directory.glob("checkpoint-*"))
    return max(folders, key=lambda folder: int(folder.name.split("-")[1]), default=None)


def storm(directory: Path, num_kills: int, seed: int) -> Outcome:
    """Train and kill until `num_kills` trainings were killed and the last one is through."""
    torch.set_num_threads(1)
    reference = directory / "reference"
    reference.mkdir(parents=True)
    make_trainer(directory / "imports")  # once, by the parent
    started = time.monotonic()
    os.waitpid(in_child(lambda: train(reference)), 0)
    duration_seconds = time.monotonic() - started
    outcome, draw, number = Outcome(), random.Random(seed), 0
    while outcome.kills < num_kills:
        number += 1
        disturbed = directory / f"disturbed-{number}"
        disturbed.mkdir()
        kill_until_finished(disturbed, duration_seconds, draw, outcome)
        expected = torch.load(reference / "weights.pt", weights_only=True)
        found = torch.load(disturbed / "weights.pt", weights_only=True)
        outcome.finished += 1
        outcome.differing += not torch.equal(found, expected)
        shutil.rmtree(disturbed)
    return outcome


def kill_until_finished(
    directory: Path, duration_seconds: float, draw: random.Random, outcome: Outcome
) -> None:
    best = 0
    for _ in range(40):
        child = in_child(lambda: train(directory))
        time.sleep(draw.uniform(0, duration_seconds / 2))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return
        if os.WIFEXITED(status):
            outcome.hard_failures += 1
            remove_by_hand(directory)
        else:
            outcome.kills += 1
        found = max(whole_checkpoints(directory), default=0)
        outcome.lost += found < best
        best = max(best, found)
    finish(directory, outcome)


def finish(directory: Path, outcome: Outcome) -> None:
    """Go on without kills, removing by hand what it cannot load, until it is through."""
    while os.waitpid(in_child(lambda: train(directory)), 0)[1] != 0:
        outcome.hard_failures += 1
        remove_by_hand(directory)


def remove_by_hand(directory: Path) -> None:
    folder = newest_folder(directory)
    assert folder is not None, "it fails without a checkpoint, too"
    shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    sys.stdout = sys.stderr  # the Trainer prints there; the result has it to itself
    outcome = storm(arguments.directory, arguments.kills, arguments.seed)
    sys.stdout = sys.__stdout__
    print_figures("G1", asdict(outcome))


if __name__ == "__main__":
    main()
