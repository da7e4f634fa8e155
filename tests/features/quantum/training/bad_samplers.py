"""Samplers of one's own that do not answer, and a problem that cannot be asked, as a configuration
names them. Loads no torch, because other processes load it."""

import time
from typing import Any, ClassVar

import dimod

from infrastructure.features.quantum.problems.block_selection import BlockSelection


class Hanging(dimod.Sampler):
    parameters: ClassVar[dict[str, Any]] = {}
    properties: ClassVar[dict[str, Any]] = {}

    def sample(self, bqm: dimod.BinaryQuadraticModel, **parameters: Any) -> Any:
        time.sleep(600)


class Raising(Hanging):
    def sample(self, bqm: dimod.BinaryQuadraticModel, **parameters: Any) -> Any:
        raise ConnectionError("the solver is offline")


class Garbage(Hanging):
    def sample(self, bqm: dimod.BinaryQuadraticModel, **parameters: Any) -> Any:
        return "42"


class Empty(Hanging):
    def sample(self, bqm: dimod.BinaryQuadraticModel, **parameters: Any) -> Any:
        return dimod.SampleSet.from_samples_bqm([], bqm)


class Unanswerable(BlockSelection):
    """Cannot be formulated."""

    def formulate(self) -> dimod.BinaryQuadraticModel:
        raise ValueError("these are no numbers")
