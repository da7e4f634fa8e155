"""The quantum approximate optimization algorithm (Farhi, Goldstone, Gutmann 2014) as a sampler.

Each layer turns the phase of every assignment by its energy (RZ and RZZ gates) and mixes
assignments (RX). Two angles per layer are optimized on an exact simulation for the least mean
energy. Then an engine runs the circuit with these angles: numpy, Aer, or a machine of Azure
Quantum. Every shot is returned with the model's energy. The sampler supports up to 20 variables,
for which enumerating all assignments is exact and faster. So it is for demonstrations and for
trying machines, not for training decisions.
"""

from collections.abc import Mapping
from typing import ClassVar, Protocol

import dimod
import numpy as np
import numpy.typing as npt

from infrastructure.core.errors import InputError
from infrastructure.features.quantum.sampler_needs import MOST_COUNTED
from infrastructure.features.quantum.samplers.deadline import Deadline
from infrastructure.features.quantum.samplers.exact_sampler import (
    all_energies,
    as_sample_set,
    refuse_too_many,
)
from infrastructure.features.quantum.samplers.nelder_mead import minimize

NUM_LAYERS = 3
MOST_EVALUATIONS = 60
DEFAULT_SHOTS = 1000
SHARE_FOR_ANGLES = 0.5  # share of the time limit

Energies = npt.NDArray[np.float64]
Angles = npt.NDArray[np.float64]


class Engine(Protocol):
    """An engine that runs and measures a QAOA circuit.

    Attributes:
        repeats_itself: whether the same seed gives the same counts.
    """

    repeats_itself: bool

    def counts(
        self, bqm: dimod.BinaryQuadraticModel, angles: Angles, num_shots: int, seed: int | None
    ) -> Mapping[int, int]:
        """Return how often each assignment was measured.

        Bit i of an assignment's number is variable i.

        Args:
            angles: phase and mixing angle of each layer; (layers, 2). A phase angle multiplies
                the model's energies directly.
        """


class StateVector:
    """An engine that simulates all amplitudes in numpy.

    It multiplies amplitudes by phases directly, so it needs no gates.
    """

    repeats_itself = True

    def counts(
        self, bqm: dimod.BinaryQuadraticModel, angles: Angles, num_shots: int, seed: int | None
    ) -> Mapping[int, int]:
        amplitudes = evolve(all_energies(bqm), angles)
        chances = np.square(np.abs(amplitudes))
        random = np.random.default_rng(seed)
        drawn = random.choice(len(chances), num_shots, p=chances / chances.sum())
        numbers, counts = np.unique(drawn, return_counts=True)
        return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


class QAOASampler(dimod.Sampler):
    """QAOA as a `dimod.Sampler`, for up to 20 variables.

    Args:
        engine: runs the circuit; None: a simulation in numpy.
        num_layers: number of layers, with two angles each.
    """

    parameters: ClassVar[dict[str, object]] = {"num_reads": [], "seed": [], "time_limit": []}
    properties: ClassVar[dict[str, object]] = {"max_variables": MOST_COUNTED}

    def __init__(self, engine: Engine | None = None, num_layers: int = NUM_LAYERS) -> None:
        if num_layers < 1:
            raise InputError("quantum.num_layers_too_small", num_layers=num_layers)
        self.engine = engine or StateVector()
        self.num_layers = num_layers

    def sample(
        self,
        bqm: dimod.BinaryQuadraticModel,
        *,
        num_reads: int | None = None,
        seed: int | None = None,
        time_limit: float | None = None,
        **unknown: object,
    ) -> dimod.SampleSet:
        """Optimize the angles, then measure `num_reads` shots.

        Raises:
            ValueError: the model has more than 20 variables.
        """
        self.remove_unknown_kwargs(**unknown)
        refuse_too_many("QAOA", bqm.num_variables)
        if not bqm.num_variables:
            return dimod.SampleSet.from_samples_bqm(np.empty((1, 0), np.int8), bqm)
        seconds = None if time_limit is None else SHARE_FOR_ANGLES * time_limit
        deadline = Deadline(seconds)
        angles, mean = best_angles(all_energies(bqm), self.num_layers, deadline)
        shots = num_reads or DEFAULT_SHOTS
        counts = self.engine.counts(bqm, angles, shots, seed)
        numbers = np.array(list(counts), np.int64)
        sample_set = as_sample_set(bqm, numbers, list(counts.values()))
        sample_set.info.update(
            num_reads=shots,
            num_layers=self.num_layers,
            angles=angles.tolist(),
            mean_energy=mean,
            is_cut_off=deadline.is_over or not self.engine.repeats_itself,
        )
        return sample_set


def best_angles(energies: Energies, num_layers: int, deadline: Deadline) -> tuple[Angles, float]:
    """Search for the angles with the lowest mean energy; return them and that energy.

    The search starts from a ramp that imitates an anneal: phases grow while mixing fades. Mixing is
    negative because equal amplitudes are the lowest state of -X. Phases are searched in units of
    the spread of the energies, so their size does not depend on the scale of the model.
    """
    spread = float(energies.std()) or 1.0
    ramp = (np.arange(num_layers) + 0.5) / num_layers
    start = np.stack([0.8 * ramp, -0.8 * (1 - ramp)], axis=1)

    def mean_energy(flat: Angles) -> float:
        amplitudes = evolve(energies, _scaled(flat, spread))
        return float(np.square(np.abs(amplitudes)) @ energies)

    best, mean = minimize(
        mean_energy, start.ravel(), step=0.2, evaluations=MOST_EVALUATIONS, deadline=deadline
    )
    return _scaled(best, spread), mean


def _scaled(flat: Angles, spread: float) -> Angles:
    angles: Angles = flat.reshape(-1, 2) / np.array([spread, 1.0])
    return angles


def evolve(energies: Energies, angles: Angles) -> npt.NDArray[np.complex128]:
    """Return the amplitudes after all layers, starting from equal amplitudes; (2^n,).

    A layer is exp(-i phase E) and then exp(-i mixing X) on every variable.
    """
    n = max(0, len(energies).bit_length() - 1)
    state = np.full(len(energies), len(energies) ** -0.5, np.complex128)
    for phase, mixing in angles:
        state *= np.exp(-1j * phase * energies)
        stay, turn = np.cos(mixing), -1j * np.sin(mixing)
        for i in range(n):
            pairs = state.reshape(-1, 2, 1 << i)
            zero, one = pairs[:, 0].copy(), pairs[:, 1]
            pairs[:, 0] = stay * zero + turn * one
            pairs[:, 1] = stay * one + turn * zero
    return state
