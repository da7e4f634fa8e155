"""Records of quantum steps: the problem, the solver and the quality of the answer.

Records are JSON values. They are stored in checkpoints and in `quantum.json` of a run directory.
The report, the metrics and the log are made from them.
"""

import json
from collections.abc import Sequence
from typing import TypedDict

from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.features.quantum.records import baseline_is_as_good
from infrastructure.features.quantum.solving.quantum_step import Solution
from infrastructure.monitoring.drawing.formatting import format_duration

ANSWERED, SKIPPED, FAILED = "answered", "skipped", "failed"
# All records are in every checkpoint. Long values are kept only in the newest ones.
MAX_RECORDS, NUM_WHOLE = 1000, 10
LONG = ("info", "facts", "dropped")


class QuantumRecord(TypedDict, total=False):
    """The record of one quantum step. It always has `step`, `epoch`, `problem` and `outcome`.

    The choice is described by `chosen`, as text, and by keys that depend on the problem.

    Attributes:
        foretold_seconds, allowed_seconds: the predicted cost of the step, and its limit
            (None: no limit).
        why: if there is no answer, the reason, and what the run does without an answer.
        seconds, solver_seconds: time of the whole step, and of the samplers in it.
        alternatives: energies of baselines, by name.
        info: what the sampler reported about itself.
        facts: what the problem reported about itself.
        selection: hash of the selected examples' ids.
        dropped: locations of some examples that were not chosen.
    """

    step: int
    epoch: int
    problem: str
    outcome: str
    foretold_seconds: float
    allowed_seconds: float | None
    why: str
    energy: float
    answered_by: str
    is_fallback: bool
    num_variables: int
    seconds: float
    solver_seconds: float
    alternatives: dict[str, float]
    failures: list[str]
    remarks: list[str]
    info: JsonObject
    facts: JsonObject
    chosen: str
    num_examples: int
    num_selected: int
    num_dropped: int
    selection: str | None
    dropped: list[str]
    blocks: list[str]


class History:
    """The records of a run's quantum steps, oldest first; the newest `MAX_RECORDS` are kept."""

    def __init__(self) -> None:
        self._texts: list[str] = []  # copied at every step; copying texts is cheap

    def add(self, record: QuantumRecord) -> QuantumRecord:
        """Store a record, and return it in the form in which it is read from JSON."""
        text = json.dumps(record)
        self._texts = [*self._texts, text][-MAX_RECORDS:]
        if len(self._texts) > NUM_WHOLE:
            aged = json.loads(self._texts[-NUM_WHOLE - 1])
            short = {name: value for name, value in aged.items() if name not in LONG}
            self._texts[-NUM_WHOLE - 1] = json.dumps(short)
        return _parsed(text)

    def records(self) -> list[QuantumRecord]:
        """Return all stored records."""
        return [_parsed(text) for text in self._texts]

    def __len__(self) -> int:
        return len(self._texts)

    def newest(self) -> QuantumRecord | None:
        return _parsed(self._texts[-1]) if self._texts else None

    def state_dict(self) -> list[str]:
        return list(self._texts)

    def load_state_dict(self, saved: Sequence[str]) -> None:
        self._texts = list(saved)


def _parsed(text: str) -> QuantumRecord:
    record: QuantumRecord = json.loads(text)
    return record


def answer_facts(solution: Solution) -> QuantumRecord:
    """Return the facts about an answer, without the answer itself, which may be long."""
    chosen = solution.info.get("sampler")  # the one that `auto` chose
    return {
        "energy": solution.energy,
        "answered_by": solution.answered_by + (f" ({chosen})" if chosen else ""),
        "is_fallback": solution.is_fallback,
        "num_variables": solution.num_variables,
        "solver_seconds": solution.solver_seconds,
        "alternatives": solution.alternatives,
        "failures": solution.failures,
        "remarks": solution.remarks,
        "info": solution.info,
    }


def numbers_of(record: QuantumRecord) -> dict[str, float]:
    """Return the numbers of a quantum step that become metrics."""
    numbers = {
        "quantum_problem_size": record.get("num_variables"),
        "quantum_energy": record.get("energy"),
        "quantum_seconds": record.get("seconds"),
        "quantum_solver_seconds": record.get("solver_seconds"),
        "quantum_reads": record.get("info", {}).get("num_reads"),
    }
    return {name: float(v) for name, v in numbers.items() if isinstance(v, int | float)}


def in_words(record: QuantumRecord) -> str:
    """Describe a quantum step in one line."""
    head = f"Quantum step ({str(record['problem']).replace('_', ' ')})"
    if record["outcome"] != ANSWERED:
        return f"{head} {record['outcome']}: {record['why']}"
    remarks = "".join(f"; {remark}" for remark in record.get("remarks", []))
    if baseline_is_as_good(record):
        remarks += phrase("quantum.simple_rule_chooses_equally_well")
    left_out = record.get("num_examples", 0) - record.get("num_selected", 0)
    if left_out and record.get("num_dropped") == left_out:  # none at random
        return phrase(
            "quantum.redundant_examples_excluded",
            excluded=left_out,
            total=record["num_examples"],
            duration=format_duration(record["seconds"]),
            remarks=remarks,
        )
    return (
        f"{head}: {record['chosen']}, chosen by {record['answered_by']}"
        f" in {format_duration(record['seconds'])}{remarks}"
    )
