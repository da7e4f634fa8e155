"""Does a model that one process cannot train do so spread over two? The kernel says it.

    python -m benchmarks.spread_memory [--lora]

A Llama of 99 million weights in fp32 is made in a folder. Trained in full, weights, gradients and
AdamW's numbers take 16 bytes for each weight: the *state*. With `--lora` it is the weights alone.
The numbers are fixed beforehand: each process gets, by RLIMIT_DATA, what the same command takes
with a tiny model, and 0.75 times the state. The kernel should refuse memory to one process (with
`enable_memory_optimization` off, which would not begin at all); two should train and save.
Prints one JSON line: the limit, how each ended, and the peaks of the two processes (VmHWM) beside
what was forecast. In November 2026 neither was so: Temper refused one process, and two ran out of
memory in their first step, for a reason that is not known.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

SHARE = 0.75
NUM_STEPS = 3
TRAINED, LORA = 16, 4  # bytes for each weight
ROOT = Path(__file__).resolve().parents[1]


def make_model(folder: Path, tokenizer: Path, width: int, num_layers: int) -> int:
    """A Llama with random weights; how many it has."""
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=width,
        intermediate_size=8 * width // 3 // 64 * 64 or 64,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def make_tokenizer(folder: Path) -> None:
    """A tokenizer of a few words."""
    from infrastructure.training.models.tokenizer import train_tokenizer

    train_tokenizer([f"say {n} again and again" for n in range(200)], 512).save_pretrained(folder)


class Run:
    """`temper train` in a folder, and the memory of its processes.

    Args:
        limit_bytes: private memory that each of them may have; None: any.

    Attributes:
        peaks: by process, resident bytes (VmHWM) and private ones (VmData), the highest seen.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], limit_bytes: int | None) -> None:
        def limited() -> None:
            if limit_bytes is not None:
                resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))

        (folder / "temper.yaml").write_text(json.dumps(settings))  # JSON is YAML
        self.peaks: dict[int, tuple[int, int]] = {}
        command = [sys.executable, "-m", "infrastructure", "train", "--config", "temper.yaml"]
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=limited,
        )
        while process.poll() is None:
            self._look(process.pid)
            time.sleep(0.05)
        assert process.stdout is not None
        self.output, self.code = process.stdout.read(), process.returncode

    def _look(self, pid: int) -> None:
        try:
            first = psutil.Process(pid)
            for one in [first, *first.children(recursive=True)]:
                lines = Path(f"/proc/{one.pid}/status").read_text().splitlines()
                status = dict(line.split(":", 1) for line in lines)
                seen = [1024 * int(status[name].split()[0]) for name in ("VmHWM", "VmData")]
                before = self.peaks.get(one.pid, (0, 0))
                self.peaks[one.pid] = (max(before[0], seen[0]), max(before[1], seen[1]))
        except (psutil.Error, OSError, KeyError):
            return

    def largest(self, count: int, which: int) -> list[int]:
        """Of the processes with the most memory, which are those that train."""
        return sorted((peak[which] for peak in self.peaks.values()), reverse=True)[:count]


def settings_of(folder: Path, model: Path, num_processes: int, lora: bool) -> dict[str, Any]:
    rows = folder / "rows.jsonl"
    lines = [json.dumps({"prompt": f"say {n}", "completion": f"{n} again"}) for n in range(64)]
    rows.write_text("\n".join(lines))
    return {
        "num_processes": num_processes,
        "device": "cpu",
        "model": {"name": str(model), **({"lora_config": {"r": 4}} if lora else {})},
        "data": {"path": str(rows), "max_length": 64, "validation_split": 0.1, "num_workers": 0},
        "training": {
            "batch_size": 2,
            "max_steps": NUM_STEPS,
            "checkpoint_frequency": 1,
            "gradient_accumulation": 1,
            "mixed_precision": False,
            "optimizer": "adamw",
            "strategy": "standard",
        },
        "cache": {"directory": str(folder / "cache")},
        "output_dir": str(folder / "runs"),
    }


def last_run(folder: Path) -> Path:
    return max(
        (path for path in (folder / "runs").iterdir() if path.is_dir()), key=os.path.getmtime
    )


def measured(parent: Path, *, lora: bool) -> dict[str, Any]:
    """All of it, in new folders below `parent`."""
    make_tokenizer(parent / "tokenizer")
    small, large = parent / "small", parent / "large"
    make_model(small, parent / "tokenizer", 64, 2)
    weights = make_model(large, parent / "tokenizer", 768, 14)
    state_bytes = weights * (LORA if lora else TRAINED)

    def run(name: str, model: Path, size: int, limit: int | None, **more: Any) -> Run:
        folder = parent / name
        folder.mkdir(exist_ok=True)
        return Run(folder, {**settings_of(folder, model, size, lora), **more}, limit)

    base = run("base", small, 2, None)
    assert base.code == 0, base.output
    limit = base.largest(1, 1)[0] + int(SHARE * state_bytes)
    refused = run("one, refused", large, 1, limit)
    one = run("one", large, 1, limit, enable_memory_optimization=False)
    two = run("two", large, 2, limit)
    forecast = summary = {}
    if two.code == 0:
        path = last_run(parent / "two")
        forecast = json.loads((path / "forecast.json").read_text())
        summary = json.loads((path / "summary.json").read_text())
    return {
        "weights": weights,
        "state_bytes": state_bytes,
        "limit_bytes": limit,
        "private_bytes_with_a_tiny_model": base.largest(2, 1),
        "resident_bytes_with_a_tiny_model": base.largest(2, 0),
        "one, as it is": [refused.code, refused.output[-600:]],
        "one, by the kernel": [one.code, one.output[-600:]],
        "two": [two.code, two.output[-3000:]],
        "peaks": two.largest(2, 0),
        "private": two.largest(2, 1),
        "forecast": forecast.get("peak_memory_bytes"),
        "compared": summary.get("forecast"),
    }


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lora", action="store_true")
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measured(Path(folder), lora=parser.parse_args().lora)))


if __name__ == "__main__":
    main()
