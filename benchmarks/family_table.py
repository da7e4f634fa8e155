"""The table of families and methods in docs/models.md, made of what was measured."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.families import (
    BY_UNSLOTH,
    METHODS,
    RESULTS,
    ROOT,
    SEEING_METHODS,
    Cell,
    has_learnt,
)
from benchmarks.family_models import FAMILIES, SEEING

PAGE = ROOT / "docs/models.md"
BEGIN, END = "<!-- made by python -m benchmarks.families -->", "<!-- end of what is made -->"
TICK, NONE = "✓", "–"


@dataclass(frozen=True)
class Missing:
    """Why some cells have no tick.

    Attributes:
        why: one line, for people.
        refused: code with which Temper refuses them before anything is loaded; empty: it does not.
    """

    why: str
    families: tuple[str, ...]
    methods: tuple[str, ...]
    backend: str = "transformers"
    refused: str = ""

    def holds_for(self, cell: Cell) -> bool:
        return (
            cell.family in self.families
            and cell.method in self.methods
            and cell.backend == self.backend
        )


BY_TRL = ("dpo", "kto", "orpo", "reward", "grpo", "rloo", "distillation")
MISSING = [
    Missing(
        "Rejected: torchao quantizes linear layers, and GPT-2's are of another class",
        ("gpt2",),
        ("int4",),
        refused="quantization_aware.conv1d_layers",
    ),
    Missing(
        "Rejected: torchao quantizes linear layers, and most weights are in experts",
        ("mixtral",),
        ("int4",),
        refused="quantization_aware.few_linear_layers",
    ),
    Missing("The model has no vision encoder", tuple(FAMILIES), ("seeing",)),
    Missing(
        "Rejected: in Temper, TRL's methods train on text only",
        tuple(SEEING),
        BY_TRL,
        refused="methods.model_reads_images",
    ),
    Missing(
        "Rejected: quantization-aware training is for text models only",
        tuple(SEEING),
        ("int4",),
        refused="quantization_aware.text_models_only",
    ),
    Missing(
        "Rejected: in Temper, Unsloth loads text models only",
        tuple(SEEING),
        BY_UNSLOTH,
        "unsloth",
        "models.unsloth_with_images",
    ),
]


def tables(results: Mapping[str, Any]) -> str:
    """Both tables and their notes, as Markdown."""
    notes: list[str] = []
    titles = {**{m: one.title for m, one in METHODS.items()}}
    titles |= {m: one.title for m, one in SEEING_METHODS.items() if m not in titles}
    parts = [
        _table("transformers", [*titles], titles, results["cells"], notes),
        _table("unsloth", [*BY_UNSLOTH], titles, results["cells"], notes),
        "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1)),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(
    backend: str,
    methods: list[str],
    titles: Mapping[str, str],
    measured: Mapping[str, Any],
    notes: list[str],
) -> str:
    families = {name: family.title for name, family in FAMILIES.items()}
    families |= SEEING
    lines = [
        f"| loaded by {backend} | {' | '.join(families.values())} |",
        f"| --- |{' --- |' * len(families)}",
    ]
    for method in methods:
        row = [_entry(Cell(family, method, backend), measured, notes) for family in families]
        lines.append(f"| {titles[method]} | {' | '.join(row)} |")
    return "\n".join(lines)


def _entry(cell: Cell, measured: Mapping[str, Any], notes: list[str]) -> str:
    outcome = measured.get(str(cell))
    if outcome is not None and has_learnt(outcome):
        return TICK
    missing = next((one for one in MISSING if one.holds_for(cell)), None)
    if missing is None:
        return NONE
    if missing.why not in notes:
        notes.append(missing.why)
    return f"{NONE} ({notes.index(missing.why) + 1})"


def with_tables(page: str, results: Mapping[str, Any]) -> str:
    """The page with the tables between its two marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables(results)}\n\n{END}{rest.split(END)[1]}"


def write_table(page: Path = PAGE) -> None:
    """Make the tables anew."""
    results = json.loads(RESULTS.read_text())
    page.write_text(with_tables(page.read_text(), results))
