"""What this machine's GPU does, shown in at most eight minutes: `make gpu-check`.

    python -m benchmarks.gpu_check [--device cpu] [--only NAME …] [--json FILE] [--write FILE]

No network is needed. Each check runs in a process of its own and says pass, fail, or skipped and
why; on a CPU those that mean something there are run. Prints a line for each and a table of speeds,
which `--write` keeps as a page, and writes JSON. Exits with 1 where a check failed.
"""

import argparse
import contextlib
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from benchmarks.gpu_check import memory, numerics, several, speed
from benchmarks.gpu_check.bench import Bench, SkippedError
from benchmarks.gpu_check.numerics import Figures
from benchmarks.machine import table

CHECKS: dict[str, Callable[[Bench], Figures]] = {
    check.__name__: check
    for check in (
        numerics.self_checks,
        numerics.cpu_equals_gpu,
        numerics.resume_is_exact,
        numerics.fp16_with_scaler,
        numerics.bf16,
        numerics.qlora_4bit,
        numerics.unsloth,
        memory.memory_is_predicted,
        memory.out_of_memory_is_recovered,
        several.two_gpus_equal_one,
        several.two_gpus_spread_equal_one,
        speed.checkpoint_stall,
        speed.monitor_overhead,
        speed.speed_llama,
        speed.speed_phi4,
        speed.speed_llama_8b,
    )
}
TOTAL_SECONDS = 480.0
PACKAGES = ("torch", "transformers", "trl", "peft", "bitsandbytes", "unsloth", "accelerate")


def run_all(names: list[str], bench: Bench) -> dict[str, Figures]:
    """Each check in its own process, until the time is over."""
    until = time.monotonic() + TOTAL_SECONDS
    results: dict[str, Figures] = {}
    for name in names:
        left = until - time.monotonic()
        started = time.monotonic()
        results[name] = run_apart(name, bench, left) if left > 1 else _skipped("the time is over")
        results[name]["seconds"] = round(time.monotonic() - started, 1)
        print(_line(name, results[name]), flush=True)
    return results


def run_apart(name: str, bench: Bench, seconds: float) -> Figures:
    """One check in a process of its own: a failing one spoils no other."""
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--check", name]
    command += ["--folder", str(bench.folder), "--device", bench.device]
    deterministic = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env=deterministic, check=False
        )
    except subprocess.TimeoutExpired:
        return _skipped("the time was over before it had ended")
    if done.returncode:
        return {"verdict": "fail", "why": (done.stderr.strip().splitlines() or [""])[-1][:300]}
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def run_here(name: str, bench: Bench) -> Figures:
    """One check in this process."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            figures = CHECKS[name](bench)
    except SkippedError as reason:
        return _skipped(str(reason))
    return {"verdict": "pass" if figures.pop("passed") else "fail", **figures}


def _skipped(why: str) -> Figures:
    return {"verdict": "skipped", "why": why}


def _line(name: str, figures: Figures) -> str:
    rest = {key: value for key, value in figures.items() if key not in ("verdict", "seconds")}
    text = ", ".join(f"{key} {value}" for key, value in rest.items())
    return f"{name:<28} {figures['verdict']:<8} {figures['seconds']:>6.1f} s  {text}"


def environment(device: str) -> Figures:
    """What the figures were measured with."""
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    return {"device": gpu or "cpu", "python": platform.python_version(), **versions}


def page(facts: Figures, checks: dict[str, Figures]) -> str:
    """What was measured, on which machine, with which versions."""
    of_packages = ", ".join(f"{name} {facts[name]}" for name in facts if name != "device")
    verdicts = [
        (name, figures["verdict"], figures.get("why", "")) for name, figures in checks.items()
    ]
    return (
        f"# What a GPU does\n\n`make gpu-check` on {facts['device']}; {of_packages}.\n\n"
        "Tokens per second of a 4-bit LoRA (r 8, alpha 32, dropout 0.1) of models with random"
        " weights, rows packed to 2,048 tokens. The peak is what a large product in bf16 reaches on"
        " this card; computing activations again counts as nothing done.\n\n"
        f"{speed.speed_table(checks)}\n{table(('check', 'verdict', 'why'), verdicts)}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    best = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cuda", "cpu"], default=best)
    parser.add_argument("--only", nargs="*", choices=list(CHECKS), default=list(CHECKS))
    parser.add_argument("--json", type=Path, help="where the figures are written too")
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the page")
    for hidden in ("--check", "--system", "--shape"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    if arguments.folder is not None:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        bench = Bench(arguments.folder, arguments.device)
        if arguments.system:
            with contextlib.redirect_stdout(sys.stderr):
                figures = speed.measure_system(bench, arguments.system, arguments.shape)
        else:
            figures = run_here(arguments.check, bench)
        print(json.dumps(figures))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        results = run_all(arguments.only, Bench(Path(folder), arguments.device))
    facts = environment(arguments.device)
    print(speed.speed_table(results))
    if arguments.write:
        arguments.write.write_text(page(facts, results))
    result = json.dumps({"environment": facts, "checks": results}, indent=1)
    if arguments.json:
        arguments.json.write_text(result + "\n")
    return int(any(figures["verdict"] == "fail" for figures in results.values()))


if __name__ == "__main__":
    sys.exit(main())
