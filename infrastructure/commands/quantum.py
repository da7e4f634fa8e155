"""What `temper quantum solve` does: one problem from a file, one answer."""

import json
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dimod

from infrastructure.deployment.signals import interrupt_on_signals
from infrastructure.quantum.model_file import read_model
from infrastructure.quantum.samplers.deadline import Deadline
from infrastructure.quantum.samplers.sampler_factory import (
    SAMPLERS,
    close_sampler,
    create_sampler,
)

DONE = 0
KEPT_WITHIN_SECONDS = 0.5
MOST_NAMED = 20


@dataclass(frozen=True)
class SolveWish:
    """What is to be solved, and how.

    Attributes:
        file: a model; see `model_file`.
        sampler: its name, or one's own `module:Class`.
        seconds: the time limit, reading included.
        seed: of the random numbers; None: another one each time.
        num_ones: ones (up spins) that the answer has; None: any number.
        num_reads: searches, or shots of a machine; None: as many as suit the size.
        as_json: print one JSON object, nothing else.
    """

    file: Path
    sampler: str = "auto"
    seconds: float = 60.0
    seed: int | None = None
    num_ones: int | None = None
    num_reads: int | None = None
    as_json: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"--time-limit {self.seconds:g}: give seconds, more than 0")
        for name, value, least in (
            ("--seed", self.seed, 0),
            ("--num-ones", self.num_ones, 0),
            ("--reads", self.num_reads, 1),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name} {value}: give a whole number of at least {least}")


def solve(wish: SolveWish) -> int:
    """Read, ask, and tell the best answer.

    Raises:
        ValueError: the file holds no model, or the sampler cannot take what is asked.
        SamplerError: the sampler failed, or had no answer in time.
    """
    deadline = Deadline(wish.seconds)
    sampler = create_sampler(wish.sampler)
    asked = _asked(wish, sampler)
    try:
        with interrupt_on_signals():
            bqm = read_model(wish.file)
            if "time_limit" in sampler.parameters:
                asked["time_limit"] = max(0.0, deadline.seconds_left)
            found = sampler.sample(bqm, **asked)
    finally:
        close_sampler(sampler)
    facts = _facts(wish, bqm, found, deadline.elapsed_seconds)
    print(json.dumps(facts) if wish.as_json else "\n".join(_lines(wish, facts)))
    return DONE


def _asked(wish: SolveWish, sampler: dimod.Sampler) -> dict[str, Any]:
    """The keywords of the question; what was asked for and the sampler cannot do is refused."""
    given = {"seed": wish.seed, "num_ones": wish.num_ones, "num_reads": wish.num_reads}
    asked = {key: value for key, value in given.items() if value is not None}
    unknown = sorted(asked.keys() - sampler.parameters.keys())
    if unknown:
        able = [name for name in SAMPLERS if unknown[0] in create_sampler(name).parameters]
        raise ValueError(
            f"the sampler {wish.sampler} takes no {unknown[0]}; these do: {', '.join(able)}"
        )
    return asked


def _facts(
    wish: SolveWish, bqm: dimod.BinaryQuadraticModel, found: dimod.SampleSet, seconds: float
) -> dict[str, Any]:
    best = found.first
    labels: list[Hashable] = list(bqm.variables)
    values = [int(best.sample[label]) for label in labels]
    return {
        "file": str(wish.file),
        "num_variables": bqm.num_variables,
        "num_interactions": bqm.num_interactions,
        "energy": float(best.energy),
        "seconds": round(seconds, 3),
        "time_limit": wish.seconds,
        "is_limit_kept": seconds <= wish.seconds + KEPT_WITHIN_SECONDS,
        "is_cut_off": bool(found.info.get("is_cut_off", False)),
        "sampler": found.info.get("sampler", wish.sampler),
        "reason": found.info.get("reason", "it was asked for"),
        "num_reads": found.info.get("num_reads"),
        "num_ones": sum(value > 0 for value in values),
        "variables": labels,
        "values": values,
    }


def _lines(wish: SolveWish, facts: dict[str, Any]) -> list[str]:
    ones = [str(v) for v, x in zip(facts["variables"], facts["values"], strict=True) if x > 0]
    more = f", and {len(ones) - MOST_NAMED} more" if len(ones) > MOST_NAMED else ""
    kept = "kept" if facts["is_limit_kept"] else "not kept"
    cut = "; the search was cut off by it" if facts["is_cut_off"] else ""
    shape = f"{facts['num_variables']} variables, {facts['num_interactions']} interactions"
    return [
        f"{facts['file']}: {shape}",
        f"energy   {facts['energy']:.10g}",
        f"sampler  {facts['sampler']}: {facts['reason']}",
        f"time     {facts['seconds']:.2f} s, the limit of {wish.seconds:g} s is {kept}{cut}",
        f"ones     {len(ones)}: {', '.join(ones[:MOST_NAMED]) or 'none'}{more}",
    ]
