"""Engines that run QAOA circuits: the Aer simulator on this machine, or Azure Quantum.

Both get a qiskit circuit. Neither falls back to another engine: the requested one answers or
raises.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import dimod
import numpy as np

from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.features.quantum.sampler_needs import check_access
from infrastructure.features.quantum.samplers.qaoa_sampler import Angles

DEFAULT_TARGET = "ionq.simulator"
WAIT_SECONDS = 300  # for a job; a shorter deadline ends the waiting process


def qaoa_circuit(bqm: dimod.BinaryQuadraticModel, angles: Angles) -> object:
    """Build the QAOA circuit of a model, with a measurement of all qubits.

    It applies H to all qubits, then, layer by layer, RZ and RZZ by the energies and RX. Qubit i is
    the i-th variable; a measured 1 is a one, or up. For spins s = ±1 with energies h·s and J·s·s,
    exp(-i a E) is RZ(-2 a h) and RZZ(2 a J), since |1> is s = +1 here.
    """
    qiskit = require("qiskit", phrase("quantum.gate_circuit"))
    spin = bqm if bqm.vartype is dimod.SPIN else bqm.change_vartype(dimod.SPIN, inplace=False)
    order = {label: i for i, label in enumerate(bqm.variables)}
    circuit = qiskit.QuantumCircuit(len(order), len(order))
    circuit.h(range(len(order)))
    for phase, mixing in np.asarray(angles, float).tolist():
        for label, bias in spin.iter_linear():
            circuit.rz(-2 * phase * bias, order[label])
        for one, other, bias in spin.iter_quadratic():
            circuit.rzz(2 * phase * bias, order[one], order[other])
        circuit.rx(2 * mixing, range(len(order)))
    circuit.measure(range(len(order)), range(len(order)))
    return circuit


class AerEngine:
    """An engine that runs circuits with qiskit-aer's simulator on this machine.

    Raises:
        MissingPackageError: qiskit-aer is not installed.
    """

    repeats_itself = True

    def __init__(self) -> None:
        self.backend = require(
            "qiskit_aer", phrase("quantum.the_sampler", name="aer_qaoa")
        ).AerSimulator()

    def counts(
        self, bqm: dimod.BinaryQuadraticModel, angles: Angles, num_shots: int, seed: int | None
    ) -> Mapping[int, int]:
        qiskit = require("qiskit", phrase("quantum.the_sampler", name="aer_qaoa"))
        circuit = qiskit.transpile(qaoa_circuit(bqm, angles), self.backend, optimization_level=1)
        job = self.backend.run(circuit, shots=num_shots, seed_simulator=seed)
        return _numbers(job.result().get_counts())


class AzureEngine:
    """An engine that runs circuits on a target of an Azure Quantum workspace.

    Args:
        target: such as `ionq.simulator`, `quantinuum.sim.h2-1e` or `rigetti.sim.qvm`.
        provider: has `get_backend(name)`; None: that of the workspace in the environment.

    Raises:
        MissingSecretError: the environment names no workspace.
        MissingPackageError: azure-quantum is not installed.
    """

    repeats_itself = False

    def __init__(self, target: str = DEFAULT_TARGET, provider: Any = None) -> None:
        self.backend = (provider or _provider()).get_backend(target)

    def counts(
        self, bqm: dimod.BinaryQuadraticModel, angles: Angles, num_shots: int, seed: int | None
    ) -> Mapping[int, int]:
        """Run one job, and return how often each assignment was measured.

        `seed` is ignored, because a machine's shots cannot be seeded.

        Raises:
            RuntimeError: the job failed at Azure Quantum.
        """
        job = self.backend.run(qaoa_circuit(bqm, angles), shots=num_shots)
        result = job.result(timeout=WAIT_SECONDS)
        if not result.success:
            raise RuntimeError(phrase("quantum.azure_job_failed", job=job.job_id()))
        return _numbers(result.get_counts())


def _provider() -> Any:
    quantum = require("azure.quantum", phrase("quantum.the_sampler", name="azure_quantum"))
    check_access("azure_quantum")
    providers = importlib.import_module("azure.quantum.qiskit")
    return providers.AzureQuantumProvider(quantum.Workspace())


def _numbers(counts: Mapping[str, int]) -> dict[int, int]:
    """Convert measured bit strings such as "0110", with the last qubit first, to numbers."""
    return {int(text.replace(" ", ""), 2): count for text, count in counts.items()}
