"""QAOA: the state, the circuit in gates, the angles, and what its engines measure."""

import unittest
from types import SimpleNamespace
from typing import Any

import dimod
import numpy as np
import pytest

from infrastructure.core.errors import MissingSecretError
from infrastructure.features.quantum.samplers.deadline import Deadline
from infrastructure.features.quantum.samplers.exact_sampler import all_energies
from infrastructure.features.quantum.samplers.qaoa_sampler import QAOASampler, best_angles, evolve
from tests.features.quantum.samplers.questions import least_energy, random_model

ANGLES = np.array([[0.3, 0.7], [0.9, 0.2]])


@dimod.testing.load_sampler_bqm_tests(QAOASampler)
class TestConformance(unittest.TestCase):
    def test_it_is_a_sampler_as_dimod_wants_it(self) -> None:
        dimod.testing.assert_sampler_api(QAOASampler())


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
def test_the_state_is_that_of_the_definition(vartype: str) -> None:
    bqm = random_model(4, 0, vartype)
    state = evolve(all_energies(bqm), ANGLES)
    np.testing.assert_allclose(state, dense_evolution(bqm, ANGLES), atol=1e-12)


def test_angles_lower_the_mean_energy_below_random_assignments() -> None:
    energies = all_energies(random_model(8, 1))
    angles, mean = best_angles(energies, 3, Deadline(None))
    assert angles.shape == (3, 2)
    assert mean < energies.mean() - 0.8 * energies.std()
    hurried, worse = best_angles(energies, 3, Deadline(0.0))
    assert mean < worse <= energies.mean()
    assert hurried.shape == (3, 2)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_the_size_of_the_energies_does_not_matter(scale: float) -> None:
    bqm = random_model(8, 3)
    bqm.scale(scale)
    found = QAOASampler().sample(bqm, seed=0)
    assert found.first.energy == pytest.approx(least_energy(bqm))
    dimod.testing.assert_response_energies(found, bqm, precision=1)


def test_every_shot_is_returned_and_a_seed_repeats_them() -> None:
    bqm = random_model(6, 2)
    one, two = (QAOASampler().sample(bqm, num_reads=300, seed=5) for _ in range(2))
    assert one.record.num_occurrences.sum() == 300
    assert one == two


def test_too_many_variables_are_refused_with_the_reason() -> None:
    with pytest.raises(
        ValueError,
        match=r"quantum\.too_many_variables_to_enumerate.*num_variables=21.*sampler=QAOA",
    ):
        QAOASampler().sample(random_model(21, 0))
    with pytest.raises(ValueError, match=r"quantum\.num_layers_too_small.*num_layers=0"):
        QAOASampler(num_layers=0)


def gate_engines() -> Any:
    pytest.importorskip("qiskit")
    from infrastructure.features.quantum.samplers import gate_engines

    return gate_engines


@pytest.mark.parametrize("vartype", ["BINARY", "SPIN"])
def test_the_circuit_in_gates_is_the_same_state(vartype: str) -> None:
    """Up to a phase that all amplitudes share."""
    circuit = gate_engines().qaoa_circuit(random_model(5, 4, vartype), ANGLES)
    from qiskit.quantum_info import Statevector

    circuit.remove_final_measurements()
    state = Statevector(circuit).data
    wanted = evolve(all_energies(random_model(5, 4, vartype)), ANGLES)
    assert abs(np.vdot(state, wanted)) == pytest.approx(1, abs=1e-9)


def test_aer_measures_what_the_state_vector_predicts() -> None:
    pytest.importorskip("qiskit_aer")
    bqm = random_model(5, 4)
    counts = gate_engines().AerEngine().counts(bqm, ANGLES, 20_000, seed=1)
    chances = np.abs(evolve(all_energies(bqm), ANGLES)) ** 2
    measured = np.array([counts.get(i, 0) for i in range(32)]) / 20_000
    np.testing.assert_allclose(measured, chances, atol=0.015)
    found = QAOASampler(gate_engines().AerEngine()).sample(bqm, seed=2)
    assert found.first.energy == pytest.approx(least_energy(bqm))


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


def test_azure_gets_one_job_with_the_same_circuit_and_its_shots_are_the_answer() -> None:
    engines, provider = gate_engines(), StandInProvider()
    bqm = dimod.BinaryQuadraticModel({"a": 1.0, "b": -1.0}, {"ab": 0.5}, "BINARY")
    sampler = QAOASampler(engines.AzureEngine(provider=provider))
    found = sampler.sample(bqm, num_reads=100)
    ((circuit, shots),) = provider.jobs
    assert shots == 100
    assert circuit == engines.qaoa_circuit(bqm, np.array(found.info["angles"]))
    counts = {(s["a"], s["b"]): k for s, k in found.data(["sample", "num_occurrences"])}
    assert counts == {(1, 0): 3, (0, 1): 97}  # the last bit of a text is the first variable


def test_a_job_that_failed_there_is_no_answer() -> None:
    engine = gate_engines().AzureEngine(provider=StandInProvider(success=False))
    with pytest.raises(RuntimeError, match=r"quantum\.azure_job_failed\(job=job-1\)"):
        QAOASampler(engine).sample(random_model(2, 0))


def test_without_a_workspace_azure_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("azure.quantum")
    for name in ("CONNECTION_STRING", "SUBSCRIPTION_ID", "WORKSPACE_NAME", "WORKSPACE_RG"):
        monkeypatch.delenv(f"AZURE_QUANTUM_{name}", raising=False)
    with pytest.raises(MissingSecretError, match="variable=AZURE_QUANTUM_CONNECTION_STRING"):
        gate_engines().AzureEngine()
