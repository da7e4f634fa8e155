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

AZURE_CONNECTION, AZURE_WORKSPACE = (
    "AZURE_QUANTUM_CONNECTION_STRING",
    "AZURE_QUANTUM_WORKSPACE_NAME",
)
MOST_COUNTED = 20  # most variables for which all assignments can be enumerated


@dataclass(frozen=True)
class SamplerNeeds:
    """The requirements of a sampler. None means no requirement, or no largest problem.

    Attributes:
        package: the import name of the required package.
        variables: environment variables, one of which must be set to reach the remote machine.
        max_variables: the number of variables of the largest problem that the sampler supports.
    """

    package: str | None = None
    variables: tuple[str, ...] = ()
    max_variables: int | None = None


SAMPLER_NEEDS: dict[str, SamplerNeeds] = {
    "auto": SamplerNeeds(),
    "exact": SamplerNeeds(max_variables=MOST_COUNTED),
    "dense_annealer": SamplerNeeds(),
    "simulated_annealing": SamplerNeeds("dwave.samplers"),
    "azure_quantum": SamplerNeeds(
        "azure.quantum", (AZURE_CONNECTION, AZURE_WORKSPACE), MOST_COUNTED
    ),
}


def check_sampler(name: str) -> None:
    """Check that a sampler can be used on this machine.

    Raises:
        ValueError: if there is no sampler of this name, or the module of a custom `module:Class`
            does not exist.
        MissingPackageError: if the sampler's package is not installed; the message says how to
            install it.
        MissingSecretError: if the environment variables for the sampler's remote machine are not
            set.
    """
    if ":" in name:
        if missing := missing_module("sampler", name):
            raise InputError(missing)
        return
    needs = look_up("sampler", canonical(name), SAMPLER_NEEDS)
    if needs.package is not None:
        refuse_missing(needs.package, phrase("quantum.the_sampler", name=name))
    if needs.variables and not any(map(os.environ.get, needs.variables)):
        need = phrase("quantum.needs_azure_workspace", variable=needs.variables[0])
        raise MissingSecretError("quantum.sampler_access_missing", name=name, need=need)


def most_variables(name: str) -> int | None:
    """Return the most variables that a sampler supports; None if there is no limit or it is
    custom.
    """
    needs = SAMPLER_NEEDS.get(canonical(name))
    return None if needs is None else needs.max_variables


def canonical(name: str) -> str:
    """Replace hyphens in a sampler's name, as the specification writes it, by underscores."""
    return name.replace("-", "_")
