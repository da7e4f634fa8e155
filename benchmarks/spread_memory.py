"""Does a model that one process cannot train do so spread over two? The kernel says it.

    python -m benchmarks.spread_memory [--lora] [--write benchmarks/results/spread_memory.md]

A Llama in fp32 is made in a folder, and each process of a command may have so much private memory
and no more (RLIMIT_DATA): beyond it the kernel refuses. The same command is given

1. one process: the forecast refuses it, or with `--lora` the kernel does while it is loaded;
2. one process that begins all the same (`enable_memory_optimization` off): the kernel refuses it;
3. two processes, which are killed with SIGKILL once a version after the first is saved;
4. the same again, which goes on to the end.

Fixed beforehand, in November 2026, before the first run that counted: the models, and the limit:
what the same command takes with a tiny model on two processes, and `SHARE` of the *state*. The
state of full training is 16 bytes for each weight (weight, gradient, two numbers of AdamW), with
`--lora` the 4 of the weight. So a process with half of the state fits, and one with all does not.
Two processes are to stay within 10% of what was forecast for each, which is half of the state and
what it measures besides; and since November 25th without running out of memory once, which restarts
in smaller pieces had answered unseen. On that day the 28 layers of `--lora` ran out of memory, and
40 took their place for some hours; what came after (blocks that go back at once) lets 28 train.
"""

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from benchmarks.machine import environment, publish, sentence, table
from infrastructure.core.hardware import MIB
from infrastructure.core.messages import WORDS
from infrastructure.models.tokenizer import train_tokenizer

SHARE = 0.75
TOLERANCE = 0.1
NUM_STEPS = 6
SAVED_EVERY = 2
NUM_RANKS = 2
RAN_OUT = "ran out of memory"
REFUSED = "allocate memory"  # how PyTorch, Python and the C library say it
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Model:
    """A Llama with random weights."""

    width: int
    num_layers: int

    def make(self, folder: Path, tokenizer: Path) -> int:
        """Save it; how many weights it has."""
        config = LlamaConfig(
            vocab_size=1024,
            hidden_size=self.width,
            intermediate_size=8 * self.width // 3 // 64 * 64 or 64,
            num_hidden_layers=self.num_layers,
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


TINY = Model(64, 2)
TRAINED_BYTES, FROZEN_BYTES = 16, 4  # for each weight
FULL, LORA = Model(768, 14), Model(768, 28)


def make_tokenizer(folder: Path) -> None:
    """A tokenizer of a few words."""
    train_tokenizer([f"say {n} again and again" for n in range(200)], 512).save_pretrained(folder)


class Run:
    """`temper train` in a folder, and the memory of its processes.

    Args:
        limit_bytes: private memory that each of them may have; None: any.
        killed_when: all of them are killed once this is so.

    Attributes:
        peaks: by process, resident bytes (VmHWM) and private ones (VmData), the highest seen.
        ranks: by process, its number where it is one of several that train.
        output, code: what it wrote, and how it ended.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        limit_bytes: int | None,
        killed_when: Callable[[], bool] = lambda: False,
    ) -> None:
        def limited() -> None:
            if limit_bytes is not None:
                resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))

        self.folder = folder
        (folder / "temper.yaml").write_text(json.dumps(settings))  # JSON is YAML
        self.peaks: dict[int, tuple[int, int]] = {}
        self.ranks: dict[int, int | None] = {}
        in_words = {name: value for name, value in os.environ.items() if name != WORDS}
        with (folder / "output.txt").open("w+") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "infrastructure", "train", "--config", "temper.yaml"],
                cwd=folder,
                env={**in_words, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=limited,
            )
            first = psutil.Process(process.pid)
            while process.poll() is None:
                self._look(first)
                if killed_when():
                    _kill(first)
                time.sleep(0.05)
            output.seek(0)
            self.output, self.code = output.read(), process.returncode

    def _look(self, first: psutil.Process) -> None:
        for one in _all_below(first):
            with suppress(OSError, KeyError, psutil.Error):
                if one.pid not in self.ranks:
                    number = one.environ().get("RANK")
                    self.ranks[one.pid] = None if number is None else int(number)
                lines = Path(f"/proc/{one.pid}/status").read_text().splitlines()
                status = dict(line.split(":", 1) for line in lines)
                seen = [1024 * int(status[name].split()[0]) for name in ("VmHWM", "VmData")]
                before = self.peaks.get(one.pid, (0, 0))
                self.peaks[one.pid] = (max(before[0], seen[0]), max(before[1], seen[1]))

    def largest(self, which: int) -> int:
        """Of all processes."""
        return max((peak[which] for peak in self.peaks.values()), default=0)

    def of_ranks(self, which: int) -> list[int]:
        """Of rank 0 and of rank 1, whatever they were started again as."""
        return [
            max(
                (peak[which] for pid, peak in self.peaks.items() if self.ranks[pid] == rank),
                default=0,
            )
            for rank in range(NUM_RANKS)
        ]

    def line(self, part: str) -> str:
        """The last line of the output that has this in it; "": there is none."""
        return _last_with(part, self.output)

    def refusal(self) -> str:
        """What the kernel refused, as it ended the process, or as what ended it began: a way back
        may lack the memory for a thread. "": nothing."""
        paths = self.folder.glob("runs/*/logs/errors/traceback.txt")
        texts = [self.output, *(path.read_text() for path in paths)]
        return next(filter(None, (_last_with(REFUSED, text) for text in texts)), "")


def _last_with(part: str, text: str) -> str:
    lines = [line for line in text.splitlines() if part in line]
    return lines[-1].strip() if lines else ""


def _all_below(first: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return [first, *first.children(recursive=True)]
    return []


def _kill(first: psutil.Process) -> None:
    for one in _all_below(first):
        with suppress(psutil.Error):
            one.send_signal(signal.SIGKILL)


def settings_of(folder: Path, model: Path, num_processes: int, lora: bool) -> dict[str, Any]:
    """The configuration of a short training, whose rows are written."""
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
            "checkpoint_frequency": SAVED_EVERY,
            "gradient_accumulation": 1,
            "mixed_precision": False,
            "optimizer": "adamw",
            "strategy": "standard",
        },
        "cache": {"directory": str(folder / "cache")},
        "output_dir": str(folder / "runs"),
    }


def saved_steps(folder: Path) -> list[str]:
    """Names of the versions of the runs in a folder, in their order."""
    return sorted(path.stem for path in folder.glob("runs/*/checkpoints/versions/*.json"))


def measured(parent: Path, model: Model, *, lora: bool) -> dict[str, Any]:
    """All of it, in new folders below `parent`."""
    make_tokenizer(parent / "tokenizer")
    small, large = parent / "small", parent / "large"
    TINY.make(small, parent / "tokenizer")
    weights = model.make(large, parent / "tokenizer")
    state_bytes = weights * (FROZEN_BYTES if lora else TRAINED_BYTES)

    def run(
        name: str,
        source: Path,
        size: int,
        limit: int | None,
        killed_when: Callable[[], bool] = lambda: False,
        **more: Any,
    ) -> Run:
        folder = parent / name
        folder.mkdir(exist_ok=True)
        return Run(folder, {**settings_of(folder, source, size, lora), **more}, limit, killed_when)

    base = run("base", small, NUM_RANKS, None)
    assert base.code == 0, base.output
    limit = base.largest(1) + int(SHARE * state_bytes)
    refused = run("one, refused", large, 1, limit)
    one = run("one", large, 1, limit, enable_memory_optimization=False)
    two = parent / "two"
    killed = run("two", large, NUM_RANKS, limit, lambda: len(saved_steps(two)) > 1)
    at_kill = saved_steps(two)
    last = run("two", large, NUM_RANKS, limit)
    paths = list(two.glob("runs/*"))
    files = [path / name for path in paths for name in ("forecast.json", "summary.json")]
    forecast, summary = (
        json.loads(file.read_text()) if file.exists() else {} for file in files or [two, two]
    )
    foretold = forecast.get("peak_memory_bytes", 0)
    peaks, private = (
        [max(pair) for pair in zip(killed.of_ranks(which), last.of_ranks(which), strict=True)]
        for which in (0, 1)
    )
    return {
        "lora": lora,
        "weights": weights,
        "state_bytes": state_bytes,
        "limit_bytes": limit,
        "tiny_private_bytes": base.largest(1),
        "refused": [refused.code, refused.line("temper:").replace(f"{parent}/", "")],
        "one": [one.code, one.refusal().replace(f"{parent}/", ""), one.output],
        "one_private_bytes": one.largest(1),
        "killed": [killed.code, killed.line("Forecast:"), at_kill, killed.output],
        "last": [last.code, last.line("resuming from step"), saved_steps(two), last.output],
        "num_runs": len(paths),
        "status": summary.get("status"),
        "step": summary.get("total_steps"),
        "forecast_bytes": foretold,
        "peak_bytes": peaks,
        "private_bytes": private,
        "times_out_of_memory": (killed.output + last.output).count(RAN_OUT),
        "errors": [foretold / peak - 1 for peak in peaks] if foretold and all(peaks) else [],
    }


def is_shown(results: dict[str, Any]) -> bool:
    """Whether it is as fixed beforehand."""
    return (
        results["refused"][0] != 0
        and results["one"][0] != 0
        and results["one"][1] != ""
        and results["killed"][0] != 0
        and results["last"][0] == 0
        and re.search(r"resuming from step [1-9]", results["last"][1]) is not None
        and results["num_runs"] == 1
        and results["times_out_of_memory"] == 0
        and len(results["errors"]) == NUM_RANKS
        and all(abs(error) <= TOLERANCE for error in results["errors"])
    )


def page(results: dict[str, Any]) -> str:
    """What was found, to be read."""
    peaks, private = results["peak_bytes"], results["private_bytes"]
    rows = [
        ("one process", results["refused"][0], results["refused"][1]),
        ("one, begun all the same", results["one"][0], results["one"][1]),
        ("two, killed", results["killed"][0], f"saved: {', '.join(results['killed'][2])}"),
        ("two, again", results["last"][0], results["last"][1]),
    ]
    errors = [f"{error:+.1%}" for error in results["errors"]] or ["none"] * NUM_RANKS
    numbers = [
        (f"rank {rank}", _mib(results["forecast_bytes"]), _mib(peak), error, _mib(own))
        for rank, (peak, error, own) in enumerate(zip(peaks, errors, private, strict=True))
    ]
    trained = "a LoRA of a frozen model" if results["lora"] else "all weights"
    command = "python -m benchmarks.spread_memory" + (" --lora" if results["lora"] else "")
    return (
        "# A model that one process cannot train, on two\n\n"
        f"`{command}`: {'as fixed beforehand' if is_shown(results) else 'NOT as fixed beforehand'}."
        f" {sentence(environment())}\n\n"
        f"{results['weights']:,} weights in fp32, {trained}: a state of"
        f" {_mib(results['state_bytes'])}. RLIMIT_DATA of each process:"
        f" {_mib(results['limit_bytes'])}, which is"
        f" {_mib(results['tiny_private_bytes'])} (the same command with a tiny model)"
        f" and {SHARE:g} times the state.\n\n"
        + table(("processes", "exit code", "what it said, or saved"), rows)
        + f"\nTold before the first step: {results['killed'][1]}\n\nMemory ran out"
        f" {results['times_out_of_memory']} times on two processes.\n\n"
        + table(
            (
                "",
                "forecast",
                "resident at most (VmHWM)",
                "forecast, by that",
                "private (VmData)",
            ),
            numbers,
        )
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:,.0f} MiB"


def main() -> None:
    """Print what was found; the exit code says whether it is as fixed beforehand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--write", type=Path, help="keep the page in this file, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = LORA if arguments.lora else FULL
        results = measured(Path(folder), model, lora=arguments.lora)
    print(json.dumps(results), file=sys.stderr)
    publish(page(results), arguments.write)
    sys.exit(0 if is_shown(results) else 1)


if __name__ == "__main__":
    main()
