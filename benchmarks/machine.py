"""What a figure was measured on, and tables of figures."""

import contextlib
import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from infrastructure.core.files import write_text
from infrastructure.optimization.gpu_capability import cpu_has_bf16

PACKAGES = ("torch", "transformers", "trl", "peft", "bitsandbytes")


def environment() -> dict[str, Any]:
    """Processor, threads, formats, load and versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processors = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "processor": processors[0] if processors else platform.machine(),
        "num_processors": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "bf16_instructions": cpu_has_bf16(),
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **versions,
    }


def sentence(facts: dict[str, Any]) -> str:
    """The facts of `environment`, to be read."""
    bf16 = "in hardware" if facts["bf16_instructions"] else "emulated"
    versions = [f"{name} {facts[name]}" for name in ("python", *PACKAGES) if name in facts]
    return (
        f"{facts['processor']}, {facts['num_threads']} threads on {facts['num_processors']}"
        f" processors, bf16 {bf16}, load {facts['load_average']} at the end;"
        f" {', '.join(versions)}."
    )


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def publish(page: str, path: Path | None) -> None:
    """Print a page, and keep it if there is a path."""
    print(page)
    if path is not None:
        write_text(path, page)
