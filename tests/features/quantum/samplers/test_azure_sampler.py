"""QAOA on Azure Quantum: the circuit, its angles, and what comes back of a job."""

from types import SimpleNamespace
from typing import Any

import dimod
import numpy as np
import pytest

from infrastructure.core.errors import MissingSecretError, SamplerError
from infrastructure.features.quantum.samplers.azure_sampler import AzureQuantum, qaoa_circuit, ramp
from infrastructure.features.quantum.samplers.exact_sampler import all_energies
from tests.features.quantum.samplers.questions import random_model

ANGLES = np.array([[0.3, 0.7], [0.9, 0.2]])


def dense_evolution(bqm: dimod.BinaryQuadraticModel, angles: Any) -> Any:
    """By full matrices and their exponentials, straight from the definition."""
    n = bqm.num_variables
    pauli_x, one = np.array([[0, 1], [1, 0]]), np.eye(2)
    mixer = np.zeros((2**n, 2**n))
    for i in range(n):
        term = np.eye(1)
        for j in range(n):
            term = np.kron(pauli_x if j == i else one, term)
        mixer += term
    values, vectors = np.linalg.eigh(mixer)
    state = np.full(2**n, 2 ** (-n / 2), complex)
    for phase, mixing in angles:
        state = np.exp(-1j * phase * all_energies(bqm)) * state
        state = vectors @ (np.exp(-1j * mixing * values) * (vectors.T @ state))
    return state


@pytest.mark.parametrize("vartype", ["BINARY", "SPIN"])
def test_the_circuit_in_gates_is_the_state_of_the_definition(vartype: str) -> None:
    """Up to a phase that all amplitudes share."""
    quantum_info = pytest.importorskip("qiskit.quantum_info")
    bqm = random_model(5, 4, vartype)
    circuit: Any = qaoa_circuit(bqm, ANGLES)
    circuit.remove_final_measurements()
    state = quantum_info.Statevector(circuit).data
    assert abs(np.vdot(state, dense_evolution(bqm, ANGLES))) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_the_ramp_prefers_low_energies_whatever_their_scale(scale: float) -> None:
    bqm = random_model(8, 1)
    bqm.scale(scale)
    energies = all_energies(bqm)
    mean = np.abs(dense_evolution(bqm, ramp(bqm))) ** 2 @ energies
    assert mean < energies.mean() - 0.8 * energies.std()


class StandInProvider:
    """The signatures of `azure.quantum.qiskit.AzureQuantumProvider`, its backends and jobs."""

    def __init__(self, success: bool = True) -> None:
        self.success = success
        self.jobs: list[Any] = []

    def get_backend(self, name: str | None = None, **options: Any) -> Any:
        assert name == "ionq.simulator"
        return SimpleNamespace(run=self.run)

    def run(self, run_input: Any = (), shots: int | None = None, **options: Any) -> Any:
        self.jobs.append((run_input, shots))

        def result(timeout: float | None = None, sampler_seed: int | None = None) -> Any:
            counts = {"01": 3, "10": shots - 3}  # type: ignore[operator]
            return SimpleNamespace(success=self.success, get_counts=lambda: counts)

        return SimpleNamespace(result=result, job_id=lambda: "job-1")


def test_it_gets_one_job_and_its_shots_are_the_answer() -> None:
    pytest.importorskip("qiskit")
    provider = StandInProvider()
    bqm = dimod.BinaryQuadraticModel({"a": 1.0, "b": -1.0}, {"ab": 0.5}, "BINARY")
    sampler = AzureQuantum(provider)
    dimod.testing.assert_sampler_api(sampler)
    found = sampler.sample(bqm, num_reads=100)
    ((circuit, shots),) = provider.jobs
    assert shots == 100
    assert circuit == qaoa_circuit(bqm, ramp(bqm))
    counts = {(s["a"], s["b"]): k for s, k in found.data(["sample", "num_occurrences"])}
    assert counts == {(1, 0): 3, (0, 1): 97}  # the last bit of a text is the first variable


def test_a_job_that_failed_there_is_no_answer() -> None:
    pytest.importorskip("qiskit")
    sampler = AzureQuantum(StandInProvider(success=False))
    with pytest.raises(SamplerError, match=r"quantum\.azure_job_failed\(job=job-1\)"):
        sampler.sample(random_model(2, 0))


def test_too_many_variables_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"quantum\.too_many_variables_to_enumerate.*=21"):
        AzureQuantum(StandInProvider()).sample(random_model(21, 0))


def test_without_a_workspace_azure_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("azure.quantum")
    for name in ("CONNECTION_STRING", "SUBSCRIPTION_ID", "WORKSPACE_NAME", "WORKSPACE_RG"):
        monkeypatch.delenv(f"AZURE_QUANTUM_{name}", raising=False)
    with pytest.raises(MissingSecretError, match="variable=AZURE_QUANTUM_CONNECTION_STRING"):
        AzureQuantum()
