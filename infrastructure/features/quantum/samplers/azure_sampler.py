"""A gate machine of Azure Quantum as a sampler, by the quantum approximate optimization algorithm.

The circuit (Farhi, Goldstone, Gutmann 2014) has layers that turn the phase of every assignment by
its energy (RZ and RZZ gates) and mix assignments (RX). The angles follow a linear ramp, as an
anneal does: phases grow while mixing fades (Montañez-Barrera & Michielsen 2024, arXiv 2405.09169).
Every shot is returned with the model's energy. Up to 20 variables, enumerating all assignments is
exact and faster, so this sampler is for trying machines, not for training decisions.
"""

import importlib
from typing import Any, ClassVar

import dimod
import numpy as np
import numpy.typing as npt

from infrastructure.core.errors import SamplerError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.features.quantum.sampler_needs import MOST_COUNTED, check_sampler
from infrastructure.features.quantum.samplers.exact_sampler import as_sample_set, refuse_too_many

TARGET = "ionq.simulator"
NUM_LAYERS, LARGEST_ANGLE = 3, 0.8
DEFAULT_SHOTS = 1000
WAIT_SECONDS = 300  # for a job; a shorter deadline ends the waiting process

Angles = npt.NDArray[np.float64]


class AzureQuantum(dimod.Sampler):
    """QAOA on a target of the Azure Quantum workspace that the environment names.

    Args:
        provider: has `get_backend(name)`; None: the provider of the workspace.

    Raises:
        MissingSecretError: the environment names no workspace.
        MissingPackageError: azure-quantum is not installed.
    """

    parameters: ClassVar[dict[str, object]] = {"num_reads": []}
    properties: ClassVar[dict[str, object]] = {"max_variables": MOST_COUNTED}

    def __init__(self, provider: Any = None) -> None:
        self.backend = (provider or _provider()).get_backend(TARGET)

    def sample(
        self, bqm: dimod.BinaryQuadraticModel, *, num_reads: int | None = None, **unknown: object
    ) -> dimod.SampleSet:
        """Run one job of `num_reads` shots, and return every shot.

        Raises:
            ValueError: the model has more than 20 variables.
            SamplerError: the job failed at Azure Quantum.
        """
        self.remove_unknown_kwargs(**unknown)
        refuse_too_many("azure_quantum", bqm.num_variables)
        job = self.backend.run(qaoa_circuit(bqm, ramp(bqm)), shots=num_reads or DEFAULT_SHOTS)
        result = job.result(timeout=WAIT_SECONDS)
        if not result.success:
            raise SamplerError("quantum.azure_job_failed", job=job.job_id())
        counts = result.get_counts()
        # Texts such as "0110", the last qubit first.
        numbers = np.array([int(text.replace(" ", ""), 2) for text in counts], np.int64)
        return as_sample_set(bqm, numbers, list(counts.values()))


def _provider() -> Any:
    quantum = require("azure.quantum", phrase("quantum.the_sampler", name="azure_quantum"))
    check_sampler("azure_quantum")
    providers = importlib.import_module("azure.quantum.qiskit")
    return providers.AzureQuantumProvider(quantum.Workspace())


def ramp(bqm: dimod.BinaryQuadraticModel) -> Angles:
    """Return phase and mixing angle of each layer, (layers, 2).

    Phases are in units of the spread of the energies of random assignments, so the scale of the
    model does not matter. Mixing is negative because equal amplitudes are the lowest state of -X.
    """
    spin = bqm.change_vartype(dimod.SPIN, inplace=False)
    biases = [*spin.linear.values(), *spin.quadratic.values()]
    spread = float(np.sqrt(np.square(biases).sum())) or 1.0
    times = (np.arange(NUM_LAYERS) + 0.5) / NUM_LAYERS
    return LARGEST_ANGLE * np.stack([times / spread, times - 1], axis=1)


def qaoa_circuit(bqm: dimod.BinaryQuadraticModel, angles: Angles) -> object:
    """Return the measured circuit.

    It applies H to all qubits, then, layer by layer, RZ and RZZ by the energies and RX. Qubit i is
    the i-th variable; a measured 1 means one, or spin up. For spins s = ±1 with energies h·s and
    J·s·s, exp(-i a E) is RZ(-2 a h) and RZZ(2 a J), since |1> is s = +1 here.
    """
    qiskit = require("qiskit", phrase("quantum.gate_circuit"))
    spin = bqm.change_vartype(dimod.SPIN, inplace=False)
    order = {label: i for i, label in enumerate(bqm.variables)}
    circuit = qiskit.QuantumCircuit(len(order), len(order))
    circuit.h(range(len(order)))
    for phase, mixing in angles.tolist():
        for label, bias in spin.iter_linear():
            circuit.rz(-2 * phase * bias, order[label])
        for one, other, bias in spin.iter_quadratic():
            circuit.rzz(2 * phase * bias, order[one], order[other])
        circuit.rx(2 * mixing, range(len(order)))
    circuit.measure(range(len(order)), range(len(order)))
    return circuit
