"""Training speed on a CPU of Temper, of plain hand-written loops and of TRL, in one sitting, beside
what the machine's matrix products alone would allow.

    python -m benchmarks.throughput --data gsm8k/train.jsonl [--scenario all answers …]

All train the same 12.7 M-parameter Llama (vocabulary 8192, from scratch, AdamW, clipping at 1) on
the same token ids with the same label masks: Temper's data pipeline makes them once for all. Each
system has a process of its own. They take turns, one step each, so that a busy machine is busy for
all of them; so do the matrix products of a step, in both formats. A lead is the median over the
steps of the ratios of neighbouring steps, with its bootstrap interval. In the first steps kernels
are compiled for each shape; they are not counted.

Tokens per second count real tokens, never padding. `--check` trains nothing: it compares loss
and gradients of one batch with the plain loop's. Prints one JSON line; progress to stderr.
"""

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import environment
from benchmarks.throughput.comparison import differences, is_right, measure, measure_compiled
from benchmarks.throughput.page import update
from benchmarks.throughput.systems import be_quiet
from benchmarks.throughput.workbench import SCENARIOS, prepare

NUM_COMPILED_STEPS = 14


def one_scenario(name: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What is asked of a scenario, with the differences of the loss and the machine."""
    num_steps = max(arguments.warmup + arguments.steps, NUM_COMPILED_STEPS * arguments.compile)
    workbench = prepare(SCENARIOS[name], arguments.data, num_steps, folder)
    measured: dict[str, Any] = {"difference": differences(workbench)}
    if arguments.check:
        return measured
    measured |= measure(workbench, arguments.warmup, arguments.steps)
    if arguments.compile:
        measured["compiled"] = measure_compiled(workbench, num_steps)
    return {**measured, "environment": environment()}


def create_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="GSM8K's train.jsonl")
    parser.add_argument(
        "--scenario", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS), metavar="NAME",
        help=f"of {', '.join(SCENARIOS)}; default: all of these",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, default=30, help="measured; default 30")
    parser.add_argument("--warmup", type=int, default=8, help="steps before them; default 8")
    parser.add_argument(
        "--check", action="store_true", help="compare losses and gradients, train nothing"
    )
    parser.add_argument("--compile", action="store_true", help="measure torch.compile too")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="keep throughput.json and .md")
    return parser


def main() -> int:
    arguments = create_parser().parse_args()
    be_quiet()
    result: dict[str, Any] = {}
    for name in arguments.scenario:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
            result[name] = one_scenario(name, arguments, Path(folder))
        if arguments.write is not None and not arguments.check:
            update(arguments.write, {name: result[name]})
    print(json.dumps({"benchmark": "throughput", **result}))
    return 0 if all(is_right(measured["difference"]) for measured in result.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
