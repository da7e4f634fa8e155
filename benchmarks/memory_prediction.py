"""Predicted against real peak memory on a CPU, over models, lengths, batches, LoRA, checkpointing.

    python -m benchmarks.memory_prediction

Each combination is a process of its own that trains a Llama with new weights. It measures small
micro-batches, of up to half the batch, as a run does before its first step, and
predicts the peak of the training from them; then it trains two steps of whole batches and saves
after each, and the kernel says what the peak of its resident set was. The error is told of the
whole peak, and of what the steps add to the process that holds model and libraries alone.

Prints one JSON line; progress to stderr.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

VOCAB_SIZE = 8192
NUM_STEPS = 2
MODELS = {"2 M": (128, 2), "8 M": (256, 4), "29 M": (512, 6), "67 M": (768, 8)}  # width, layers


@dataclass(frozen=True)
class Combination:
    """One training."""

    model: str
    max_length: int
    batch_size: int
    lora: bool = False
    checkpointing: bool = False
    accumulation: int = 1


COMBINATIONS = [
    Combination("8 M", 128, 32),
    Combination("8 M", 512, 16),
    Combination("8 M", 512, 16, lora=True),
    Combination("8 M", 1024, 8, checkpointing=True),
    Combination("8 M", 256, 16, accumulation=2),
    Combination("29 M", 64, 32),
    Combination("29 M", 128, 32),
    Combination("29 M", 512, 8),
    Combination("29 M", 512, 8, lora=True),
    Combination("29 M", 512, 8, checkpointing=True),
    Combination("29 M", 256, 8, lora=True, checkpointing=True),
    Combination("67 M", 128, 16),
    Combination("67 M", 256, 8, lora=True),
    Combination("67 M", 256, 8, checkpointing=True),
]


def save_model(folder: Path, name: str) -> None:
    """A Llama with new weights and a byte-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    width, layers = MODELS[name]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=width,
        intermediate_size=round(width * 8 / 3),
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        max_position_embeddings=2048,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<pad>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>"
    ).save_pretrained(folder)


def measure(combination: Combination, folder: Path) -> dict[str, Any]:
    """Prediction and truth of one combination, in this process."""
    import torch

    from infrastructure.config.sections.data_config import DataConfig
    from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
    from infrastructure.config.sections.resource_config import CacheConfig
    from infrastructure.config.sections.training_config import TrainingConfig
    from infrastructure.optimization.peak_memory import PeakMemory
    from infrastructure.training.enhanced_trainer import EnhancedTrainer

    save_model(folder / "model", combination.model)
    per_step = combination.batch_size * combination.accumulation
    rows = ({"text": f"{i:09d}" * 256} for i in range(NUM_STEPS * per_step))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trainer = EnhancedTrainer(
        ModelConfig(
            name=str(folder / "model"),
            lora_config=LoraConfig() if combination.lora else None,
        ),
        TrainingConfig(
            max_steps=NUM_STEPS,
            batch_size=combination.batch_size,
            gradient_accumulation=combination.accumulation,
            gradient_checkpointing=combination.checkpointing,
            checkpoint_frequency=1,
            mixed_precision=False,
        ),
        DataConfig(
            path=str(folder / "rows.jsonl"),
            max_length=combination.max_length,
            over_length="truncate",
            train_on="all",
            validation_split=0.0,
            num_workers=0,
        ),
        device="cpu",
        cache_config=CacheConfig(directory=str(folder / "cache")),
        checkpoint_directory=folder / "checkpoints",
    )
    trainer.prepare()
    peak = PeakMemory(torch.device("cpu"))
    idle_bytes = peak.now()
    costs = trainer.cost_measurement().costs(trainer.batch_plan(), NUM_STEPS)
    peak.start()
    trainer.train()
    was = peak.read()
    added, predicted = was - idle_bytes, costs.peak_bytes - idle_bytes
    return {
        **asdict(combination),
        "predicted_bytes": costs.peak_bytes,
        "real_bytes": was,
        "error": costs.peak_bytes / was - 1,
        "idle_bytes": idle_bytes,
        "error_of_what_steps_add": predicted / added - 1,
    }


def in_own_process(index: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.memory_prediction", "--one", str(index)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"combination {COMBINATIONS[index]} failed: {done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--one", type=int, help="measure this combination in this process")
    parser.add_argument("--first", type=int, default=len(COMBINATIONS), help="only so many")
    arguments = parser.parse_args()
    if arguments.one is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(COMBINATIONS[arguments.one], Path(folder))))
        return
    results = []
    for index in range(min(arguments.first, len(COMBINATIONS))):
        figures = in_own_process(index)
        results.append(figures)
        print(
            f"{COMBINATIONS[index]}: {figures['predicted_bytes'] / 1e6:.0f} MB foretold,"
            f" {figures['real_bytes'] / 1e6:.0f} MB real, {figures['error']:+.1%}"
            f" ({figures['error_of_what_steps_add']:+.1%} of what the steps add)",
            file=sys.stderr,
        )
    errors = [abs(figures["error"]) for figures in results]
    summary = {"largest_error": max(errors), "median_error": median(errors)}
    print(json.dumps({"benchmark": "memory_prediction", **summary, "combinations": results}))


if __name__ == "__main__":
    main()
