"""Creation of samplers without a time limit, by name, in a sampler's own process."""

from collections.abc import Callable, Mapping
from typing import Any

import dimod

from infrastructure.core.errors import InputError
from infrastructure.core.lookup import look_up
from infrastructure.core.named_object import load_object
from infrastructure.features.quantum.samplers.cloud_samplers import LeapHybrid, QuantumAnnealer
from infrastructure.features.quantum.samplers.gate_engines import AerEngine, AzureEngine
from infrastructure.features.quantum.samplers.library_samplers import (
    PathIntegral,
    SimulatedAnnealing,
    SteepestDescent,
    Tabu,
    TreeDecomposition,
)
from infrastructure.features.quantum.samplers.qaoa_sampler import NUM_LAYERS, QAOASampler


def _aer_qaoa(num_layers: int = NUM_LAYERS) -> dimod.Sampler:
    return QAOASampler(AerEngine(), num_layers)


def _azure_quantum(num_layers: int = NUM_LAYERS, **engine: Any) -> dimod.Sampler:
    return QAOASampler(AzureEngine(**engine), num_layers)


def _qaoa(num_layers: int = NUM_LAYERS) -> dimod.Sampler:
    return QAOASampler(num_layers=num_layers)


DIRECT: dict[str, Callable[..., dimod.Sampler]] = {
    "simulated_annealing": SimulatedAnnealing,
    "tabu": Tabu,
    "path_integral": PathIntegral,
    "steepest_descent": SteepestDescent,
    "tree_decomposition": TreeDecomposition,
    "qaoa": _qaoa,
    "aer_qaoa": _aer_qaoa,
    "azure_quantum": _azure_quantum,
    "leap_hybrid": LeapHybrid,
    "qpu": QuantumAnnealer,
}


def direct_sampler(name: str, options: Mapping[str, object]) -> dimod.Sampler:
    """Create a sampler without a time limit by name, or a custom `module:Class`.

    Raises:
        ValueError: the name, module or class does not exist, or does not support an option.
    """
    make = load_object("sampler", name) if ":" in name else look_up("sampler", name, DIRECT)
    try:
        sampler = make(**options)
    except TypeError as error:
        raise InputError("quantum.sampler_not_created", name=name, error=error) from None
    if not callable(getattr(sampler, "sample", None)):
        raise InputError("quantum.not_a_dimod_sampler", name=name)
    return sampler
