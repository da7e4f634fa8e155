"""Samplers on D-Wave's machines, by dwave-system. The token comes only from the environment."""

import os
from collections.abc import Callable
from typing import Any, ClassVar

import dimod
import numpy as np

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.features.quantum.sampler_needs import (
    DWAVE_CONFIG_FILE,
    DWAVE_TOKEN,
    check_access,
)

DEFAULT_SHOTS = 100

MakeSampler = Callable[..., dimod.Sampler]


class LeapHybrid(dimod.Sampler):
    """Leap's hybrid solver for binary quadratic models, for thousands of dense variables.

    Args:
        make: creates the sampler; None: `dwave.system.LeapHybridSampler` with the token from the
            environment.
        config: keyword arguments of that class, such as `solver` or `region`.

    Raises:
        MissingSecretError: there is no token.
        MissingPackageError: dwave-system is not installed.
    """

    parameters: ClassVar[dict[str, object]] = {"time_limit": []}
    properties: ClassVar[dict[str, object]] = {}

    def __init__(self, make: MakeSampler | None = None, **config: object) -> None:
        make = (
            make
            or require(
                "dwave.system", phrase("quantum.the_sampler", name="leap_hybrid")
            ).LeapHybridSampler
        )
        self.sampler: Any = make(**_access("leap_hybrid"), **config)

    def sample(
        self, bqm: dimod.BinaryQuadraticModel, *, time_limit: float | None = None, **unknown: object
    ) -> dimod.SampleSet:
        """Query the solver with its own minimum time for a model of this size.

        Raises:
            ValueError: `time_limit` is below that minimum.
        """
        self.remove_unknown_kwargs(**unknown)
        least = float(self.sampler.min_time_limit(bqm))
        if time_limit is not None and time_limit < least:
            raise InputError(
                "quantum.leap_needs_more_time",
                least=least,
                count=bqm.num_variables,
                left=time_limit,
            )
        sample_set = self.sampler.sample(bqm, time_limit=least)
        sample_set.resolve()
        return sample_set


class QuantumAnnealer(dimod.Sampler):
    """A quantum annealer. `EmbeddingComposite` maps the model to its graph of qubits.

    A machine with 5600 qubits holds about 180 fully connected variables.

    Args:
        make: creates the structured sampler; None: `dwave.system.DWaveSampler`.
        config: keyword arguments of that class, such as `solver` or `region`.

    Raises:
        MissingSecretError, MissingPackageError: as for `LeapHybrid`.
    """

    parameters: ClassVar[dict[str, object]] = {"num_reads": []}
    properties: ClassVar[dict[str, object]] = {}

    def __init__(self, make: MakeSampler | None = None, **config: object) -> None:
        system = require("dwave.system", phrase("quantum.the_sampler", name="qpu"))
        child = (make or system.DWaveSampler)(**_access("qpu"), **config)
        self.sampler = system.EmbeddingComposite(child)

    def sample(
        self, bqm: dimod.BinaryQuadraticModel, *, num_reads: int | None = None, **unknown: object
    ) -> dimod.SampleSet:
        """Return the samples of `num_reads` shots, and the share of broken chains.

        `chain_break_fraction` is a field of each sample, and its mean is in `info`.

        Raises:
            ValueError: no embedding was found.
        """
        self.remove_unknown_kwargs(**unknown)
        shots = num_reads or DEFAULT_SHOTS
        sample_set = self.sampler.sample(bqm, num_reads=shots)
        sample_set.resolve()
        sample_set.info["num_reads"] = shots
        if "chain_break_fraction" in sample_set.record.dtype.names:
            broken = np.average(sample_set.record.chain_break_fraction, weights=_counts(sample_set))
            sample_set.info["chain_break_fraction"] = float(broken)
        return sample_set


def _counts(sample_set: dimod.SampleSet) -> Any:
    return sample_set.record.num_occurrences


def _access(name: str) -> dict[str, object]:
    """Return the D-Wave token from the environment, and the configuration file named there, if any.

    Raises:
        MissingSecretError: the environment has neither.
    """
    check_access(name)
    token, file = os.environ.get(DWAVE_TOKEN), os.environ.get(DWAVE_CONFIG_FILE)
    return {"config_file": file or False, **({"token": token} if token else {})}
