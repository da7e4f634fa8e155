"""The requirements of each sampler in `quantum.solver`, and the largest problem that it supports.

This module does not import the samplers' packages or contact a remote machine, so a configuration
is checked before any slow operation. The samplers themselves are in `quantum/samplers/`.
"""

import os
from dataclasses import dataclass

from infrastructure.core.errors import InputError, MissingSecretError
from infrastructure.core.lookup import look_up
from infrastructure.core.messages import phrase
from infrastructure.core.named_object import missing_module
from infrastructure.core.optional import refuse_missing

DWAVE_TOKEN, DWAVE_CONFIG_FILE = "DWAVE_API_TOKEN", "DWAVE_CONFIG_FILE"
AZURE_CONNECTION, AZURE_WORKSPACE = (
    "AZURE_QUANTUM_CONNECTION_STRING",
    "AZURE_QUANTUM_WORKSPACE_NAME",
)
MOST_COUNTED = 20  # most variables for which all assignments can be enumerated or simulated


@dataclass(frozen=True)
class Access:
    """The requirements for access to a remote machine.

    Attributes:
        variables: environment variables, one of which must be set; users normally set the first.
        need: the code of the message that says what is needed, and what to do.
    """

    variables: tuple[str, ...]
    need: str


@dataclass(frozen=True)
class SamplerNeeds:
    """The requirements of a sampler. None means no requirement, or no largest problem.

    Attributes:
        package: the import name of the required package.
        max_variables: the number of variables of the largest problem that it supports.
    """

    package: str | None = None
    access: Access | None = None
    max_variables: int | None = None


_LIBRARY = SamplerNeeds("dwave.samplers")
_LEAP = SamplerNeeds(
    "dwave.system",
    Access(
        (DWAVE_TOKEN, DWAVE_CONFIG_FILE),
        "quantum.needs_leap_token",
    ),
)
_AZURE = Access(
    (AZURE_CONNECTION, AZURE_WORKSPACE),
    "quantum.needs_azure_workspace",
)

SAMPLER_NEEDS: dict[str, SamplerNeeds] = {
    "auto": SamplerNeeds(),
    "exact": SamplerNeeds(max_variables=MOST_COUNTED),
    "dense_annealer": SamplerNeeds(),
    "simulated_annealing": _LIBRARY,
    "tabu": _LIBRARY,
    "path_integral": _LIBRARY,
    "steepest_descent": _LIBRARY,
    "tree_decomposition": _LIBRARY,
    "qaoa": SamplerNeeds(max_variables=MOST_COUNTED),
    "aer_qaoa": SamplerNeeds("qiskit_aer", max_variables=MOST_COUNTED),
    "azure_quantum": SamplerNeeds("azure.quantum", _AZURE, MOST_COUNTED),
    "leap_hybrid": _LEAP,
    "qpu": _LEAP,
}


def check_sampler(name: str) -> None:
    """Check that a sampler can be used on this machine.

    Raises:
        ValueError: if there is no sampler of this name, or the module of a custom `module:Class`
            does not exist.
        MissingPackageError: if its package is not installed; the message says how to install it.
        MissingSecretError: if the environment variables for its remote machine are not set.
    """
    if ":" in name:
        if missing := missing_module("sampler", name):
            raise InputError(missing)
        return
    needs = look_up("sampler", canonical(name), SAMPLER_NEEDS)
    if needs.package is not None:
        refuse_missing(needs.package, phrase("quantum.the_sampler", name=name))
    check_access(name)


def check_access(name: str) -> None:
    """Check that the environment contains the access data of a sampler's remote machine.

    Raises:
        MissingSecretError: if it does not. The message says which variable to set.
    """
    access = SAMPLER_NEEDS[canonical(name)].access
    if access is not None and not any(map(os.environ.get, access.variables)):
        need = phrase(access.need, variable=access.variables[0])
        raise MissingSecretError("quantum.sampler_access_missing", name=name, need=need)


def most_variables(name: str) -> int | None:
    """Return the most variables that a sampler supports; None: no limit, or a custom sampler."""
    needs = SAMPLER_NEEDS.get(canonical(name))
    return None if needs is None else needs.max_variables


def canonical(name: str) -> str:
    """Replace hyphens in a sampler's name, as the specification writes it, by underscores."""
    return name.replace("-", "_")
