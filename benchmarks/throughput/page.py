"""The results as a page: a table for each scenario that was measured."""

import json
from pathlib import Path
from typing import Any

from benchmarks.machine import sentence, table
from benchmarks.throughput.workbench import SCENARIOS
from infrastructure.core.files import write_json, write_text
from infrastructure.core.hardware import MIB

NAMES = {
    "temper": "Temper",
    "crude_fp32": "hand-written packed loop, fp32",
    "crude_bf16": "hand-written packed loop, bf16",
    "trl_defaults": "TRL's defaults",
    "trl_fp32": "TRL, fp32",
    "trl_packing": "TRL, packing",
    "trl_packing_fp32": "TRL, packing, fp32",
}
HEAD = """# Training speed on a CPU

Made by `make bench DATA=gsm8k/train.jsonl`; one scenario alone by
`python -m benchmarks.throughput --data gsm8k/train.jsonl --scenario long --write results`.
How to read it: [performance](../../docs/performance-analysis.md).

A Llama of 12.7 M parameters on rows of GSM8K. All systems take turns, one step each, and so do the
matrix products of a step by themselves, in bf16 and in fp32. Each has a process of its own. Each
figure is the median over the steps after the warm-up; in brackets the 95% bootstrap interval of
the median. MiB are the most resident memory of a process, with all libraries.
"""
COLUMNS = (
    "", "format", "tokens/s", "share of what the products allow", "Temper is × as fast", "MiB",
)  # fmt: skip


def update(folder: Path, measured: dict[str, Any]) -> None:
    """Keep what was measured beside what was measured before, and make the page of all of it."""
    path = folder / "throughput.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known |= measured
    ordered = {name: known[name] for name in SCENARIOS if name in known}
    write_json(path, ordered)
    write_text(folder / "throughput.md", page(ordered))


def page(scenarios: dict[str, Any]) -> str:
    return "\n".join([HEAD, *map(section, scenarios.values())])


def section(measured: dict[str, Any]) -> str:
    limits, rates = measured["tokens_per_second_of_products"], measured["gflop_per_second"]
    rows = [
        *((NAMES[name], *cells(system)) for name, system in measured["systems"].items()),
        *((f"the products alone, {rates[p]} GFLOP/s", p, limits[p], "1", "", "") for p in limits),
    ]
    differences = " and ".join(
        f"{far['loss']:.0e} and {far['gradients']:.0e} ({precision})"
        for precision, far in measured["difference"].items()
    )
    return (
        f"## {measured['title'][0].upper()}{measured['title'][1:]}\n\n{table(COLUMNS, rows)}\n"
        f"{measured['steps']} steps after {measured['warmup_steps']} to warm up. The middle one has"
        f" {measured['tokens_per_step']} tokens and {measured['gflop_of_products_per_step']} GFLOP"
        f" of products. Loss and gradients of a batch differ from the hand-written loop's by"
        f" {differences} of them. {sentence(measured['environment'])}\n"
    )


def cells(system: dict[str, Any]) -> list[str]:
    lead = system.get("temper_times")
    share = system["share_of_products"]
    return [
        system["precision"],
        str(system["tokens_per_second"]),
        with_interval(share),
        "" if lead is None else with_interval(lead),
        str(round(system["peak_bytes"] / MIB)),
    ]


def with_interval(values: list[float]) -> str:
    middle, low, high = values
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"
