"""The callback in the trainers that people have: TRL's and Unsloth's, killed and going on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from infrastructure.core.optional import is_installed
from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.monitoring.training_monitor import SYSTEM_FILE
from tests.slow import slow_but

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = "tests.training.hf_bridge.sft_program"


@pytest.mark.parametrize("kind", slow_but([], ["trl", "unsloth"]))
def test_a_killed_training_goes_on_to_the_weights_of_an_undisturbed_one(
    kind: str, saved_llama: Path, tmp_path: Path
) -> None:
    """In a process that imports the trainer, which takes more than ten seconds."""
    if not is_installed(kind):
        pytest.skip(f"{kind} is not installed")
    places = {"UNSLOTH_COMPILE_LOCATION": "compiled", "HF_DATASETS_CACHE": "cache"}
    ran = subprocess.run(
        [sys.executable, "-m", PROGRAM, kind, str(saved_llama), str(tmp_path)],
        cwd=ROOT,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "UNSLOTH_DISABLE_STATISTICS": "1"}
        | {name: str(tmp_path / folder) for name, folder in places.items()},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    ended = json.loads(ran.stdout.splitlines()[-1])
    assert ended == {"undisturbed": 0, "killed": signal.SIGKILL, "done": 0}, ran.stderr
    assert f"trainer.resuming(run={kind}, step=4," in ran.stdout
    assert f"trainer.run_ended(run={kind}, status=finished, step=8," in ran.stdout
    folders = tmp_path / "undisturbed", tmp_path / "disturbed"
    assert torch.equal(*[torch.load(f / "weights.pt", weights_only=True) for f in folders])
    run = folders[1] / kind
    records = read_metrics(run / "metrics.jsonl")
    assert [r["step"] for r in records] == list(range(1, 9))
    assert records[-1]["tokens_per_second"] > 0
    tokens = [r["tokens"] for r in records]
    assert tokens == sorted(tokens)
    assert read_metrics(run / SYSTEM_FILE)[-1]["step"] == 8
    assert list((folders[1] / "of-the-trainer").glob("checkpoint-*")) == []
