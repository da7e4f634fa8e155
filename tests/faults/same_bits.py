"""The bits of trainings, to be compared before and after a change that must not move them.

    python -m tests.faults.same_bits OUT.json [--compare OLD.json] [--only NAME ...]

Each training is the real command in a folder of its own, so that any two commits can be compared.
What is kept of it: each loss, the trained model's files, and each tensor's hash in every version of
the store. Bits are those of a machine and its libraries: compare what one machine wrote. Prints one
JSON line; exit code 1 where something differs.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.deployment.runs import ROOT, losses, runs_of, write_rows

MODEL = {
    **{"hidden_size": 32, "num_layers": 4, "num_heads": 2},
    **{"intermediate_size": 48, "vocab_size": 280, "max_positions": 64},
}
TRAINING = {
    **{"batch_size": 4, "num_epochs": 2, "warmup_steps": 1, "validation_prompts": 0},
    **{"checkpoint_frequency": 4, "keep_checkpoints": 99, "metrics_sinks": ["jsonl"]},
}
QUANTUM = (
    *("--enabled-extensions", "quantum", "--optimization-frequency", "3"),
    *("--quantum-max-overhead-percent", "1000000", "--quantum-solver", "simulated_annealing"),
)
STACKS = ("--progressive-target-stacks", "2")
# The flags of each training, beyond what all have.
TRAININGS: dict[str, tuple[str, ...]] = {
    "full": (),
    "bf16": ("--mixed-precision", "bf16"),
    "accumulated": ("--batch-size", "2", "--gradient-accumulation", "3"),
    "not packed": ("--no-packing",),
    "lora": ("--lora",),
    "sgd": ("--optimizer", "sgd"),
    "streamed": ("--streaming",),
    "validated": ("--validation-interval", "3", "--early-stopping-patience", "2"),
    "block by block": ("--mode", "blockwise", "--block-size", "2"),
    "progressive": ("--strategy", "progressive", *STACKS),
    "each stack by itself": (
        *("--strategy", "end_to_end", "--end-to-end-scope", "stackwise", *STACKS),
        *("--local-loss", "reconstruct"),
    ),
    "masked": ("--time-step-masking",),
    "quantum data": (*QUANTUM, "--quantum-problem", "data_selection"),
    "quantum blocks": (*QUANTUM, "--quantum-problem", "block_selection"),
}


def trained(folder: Path, flags: tuple[str, ...]) -> dict[str, Any]:
    """Train in `folder`, and give the bits.

    Raises:
        RuntimeError: the command failed; with its last words.
    """
    write_rows(folder / "rows.jsonl", 100, 196)
    settings = {
        "model": {"embedded": MODEL},
        "data": {"path": "rows.jsonl", "max_length": 64, "num_workers": 0},
        "training": TRAINING,
        "cache": {"directory": "cache"},
        "output_dir": "runs",
        "device": "cpu",
    }
    (folder / "temper.yaml").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "infrastructure", "train", "--config", "temper.yaml", *flags],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{flags}: exit code {done.returncode}: {done.stderr[-800:]}")
    [run] = runs_of(folder)
    versions = sorted((run / "checkpoints/versions").glob("*.json"))
    return {
        "losses": losses(run),
        "final": {p.name: file_hash(p) for p in sorted((run / "final").glob("*.safetensors"))},
        "versions": [tensors_hash(json.loads(path.read_text())["tensors"]) for path in versions],
    }


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tensors_hash(tensors: dict[str, Any]) -> str:
    """Of the names and hashes of what a version holds beyond copies of a run's files."""
    names = sorted(name for name in tensors if not name.startswith("files/"))
    return hashlib.sha256(json.dumps([[n, tensors[n][1]] for n in names]).encode()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--only", nargs="*", choices=list(TRAININGS))
    options = parser.parse_args()
    bits = {}
    for name in options.only or TRAININGS:
        with tempfile.TemporaryDirectory() as folder:
            bits[name] = trained(Path(folder), TRAININGS[name])
        count = {key: len(value) for key, value in bits[name].items()}
        print(f"{name}: {count}", file=sys.stderr, flush=True)
    options.out.write_text(json.dumps(bits, indent=1))
    differing: list[str] = []
    if options.compare:
        was = json.loads(options.compare.read_text())
        now = json.loads(json.dumps(bits))
        differing = [name for name in bits if now[name] != was.get(name)]
    print(json.dumps({"trainings": len(bits), "differing": differing}))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
