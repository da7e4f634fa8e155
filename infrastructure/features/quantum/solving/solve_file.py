"""The solution of one problem that is read from a file."""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TypedDict

import dimod

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.features.quantum.samplers.deadline import Deadline
from infrastructure.features.quantum.samplers.sampler_factory import (
    SAMPLERS,
    close_sampler,
    create_sampler,
)
from infrastructure.features.quantum.solving.model_file import read_model

KEPT_WITHIN_SECONDS = 0.5


class SolvedFile(TypedDict):
    """The best answer to a model from a file. `values` are in the order of `variables`."""

    file: str
    num_variables: int
    num_interactions: int
    energy: float
    seconds: float
    time_limit: float
    is_limit_kept: bool
    is_cut_off: bool
    sampler: str
    reason: str
    num_reads: int | None
    num_ones: int
    variables: list[Hashable]
    values: list[int]


def solve_file(
    file: Path,
    sampler_name: str = "auto",
    limit_seconds: float = 60.0,
    **parameters: int | None,
) -> SolvedFile:
    """Solve the model in `file` and report how the answer was found.

    Args:
        file: see `model_file`.
        sampler_name: a name, or a custom `module:Class`.
        limit_seconds: time limit, reading included.
        parameters: `seed` of the random numbers, `num_ones` (up spins) in the answer, `num_reads`
            (searches, or shots of a machine); None: the sampler's default.

    Raises:
        ValueError: the file contains no model, or the sampler does not support a parameter.
        SamplerError: the sampler failed, or had no answer in time.
    """
    deadline = Deadline(limit_seconds)
    sampler = create_sampler(sampler_name)
    keywords: dict[str, object] = {key: v for key, v in parameters.items() if v is not None}
    _refuse_unknown(keywords, sampler, sampler_name)
    try:
        bqm = read_model(file)
        if "time_limit" in sampler.parameters:
            keywords["time_limit"] = max(0.0, deadline.seconds_left)
        samples = sampler.sample(bqm, **keywords)
    finally:
        close_sampler(sampler)
    seconds = deadline.elapsed_seconds
    labels = list(bqm.variables)
    values = [int(samples.first.sample[label]) for label in labels]
    return {
        "file": str(file),
        "num_variables": bqm.num_variables,
        "num_interactions": bqm.num_interactions,
        "energy": float(samples.first.energy),
        "seconds": round(seconds, 3),
        "time_limit": limit_seconds,
        "is_limit_kept": seconds <= limit_seconds + KEPT_WITHIN_SECONDS,
        "is_cut_off": bool(samples.info.get("is_cut_off", False)),
        "sampler": samples.info.get("sampler", sampler_name),
        "reason": samples.info.get("reason", phrase("quantum.sampler_requested")),
        "num_reads": samples.info.get("num_reads"),
        "num_ones": sum(value > 0 for value in values),
        "variables": labels,
        "values": values,
    }


def _refuse_unknown(keywords: Mapping[str, object], sampler: dimod.Sampler, name: str) -> None:
    """Check that a sampler supports all parameters; raise ValueError if not."""
    unknown = sorted(keywords.keys() - sampler.parameters.keys())
    if unknown:
        able = [one for one in SAMPLERS if unknown[0] in create_sampler(one).parameters]
        raise InputError(
            "quantum.sampler_parameter_unknown",
            name=name,
            parameter=unknown[0],
            samplers=", ".join(able),
        )
