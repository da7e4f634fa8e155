"""D-Wave's machines, by the stand-ins that dwave-system brings for tests."""

from typing import Any

import dimod
import pytest

from infrastructure.core.errors import MissingPackageError, MissingSecretError
from infrastructure.core.optional import is_installed
from infrastructure.features.quantum.samplers.cloud_samplers import LeapHybrid, QuantumAnnealer
from tests.features.quantum.samplers.questions import least_energy, random_model
from tests.slow import slow

needs_dwave = pytest.mark.skipif(
    not is_installed("dwave.system"), reason="dwave-system is not installed"
)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DWAVE_API_TOKEN", "for-tests")
    return "for-tests"


class StandInHybrid:
    """The part of `LeapHybridSampler` that is called."""

    def __init__(self, **config: Any) -> None:
        self.config = config
        self.time_limits: list[float] = []

    def min_time_limit(self, bqm: dimod.BinaryQuadraticModel) -> float:
        return 3.0

    def sample(self, bqm: dimod.BinaryQuadraticModel, time_limit: float) -> dimod.SampleSet:
        self.time_limits.append(time_limit)
        return dimod.ExactSolver().sample(bqm).truncate(1)


def test_leap_gets_its_least_time_and_the_token_of_the_environment(token: str) -> None:
    sampler = LeapHybrid(make=StandInHybrid, solver="hybrid_v2")
    bqm = random_model(6, 0)
    found = sampler.sample(bqm, time_limit=30)
    assert found.first.energy == pytest.approx(least_energy(bqm))
    assert sampler.sampler.time_limits == [3.0]
    assert sampler.sampler.config == {"token": token, "config_file": False, "solver": "hybrid_v2"}
    dimod.testing.assert_sampler_api(sampler)


def test_less_time_than_leap_takes_is_a_sentence(token: str) -> None:
    with pytest.raises(ValueError, match=r"leap_needs_more_time\(least=3\S*, count=6, left=2"):
        LeapHybrid(make=StandInHybrid).sample(random_model(6, 0), time_limit=2.0)


@needs_dwave
def test_the_real_hybrid_class_works_with_its_stand_in_solver(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dwave.system import LeapHybridSampler
    from dwave.system.testing import MockLeapHybridSolver

    class Client:
        @classmethod
        def from_config(cls, **config: Any) -> "Client":
            assert config["token"] == token
            return cls()

        def get_solver(self, **filters: Any) -> Any:
            return MockLeapHybridSolver()

    import dwave.system.samplers.leap_hybrid_sampler as module

    monkeypatch.setattr(module, "Client", Client)
    sampler = LeapHybrid()
    assert isinstance(sampler.sampler, LeapHybridSampler)
    bqm = random_model(6, 0)
    with pytest.raises(ValueError, match=r"quantum\.leap_needs_more_time\(least=1"):
        sampler.sample(bqm, time_limit=0.5)


@slow
@needs_dwave
def test_a_machine_is_embedded_into_and_reports_its_chain_breaks(token: str) -> None:
    from dwave.system.testing import MockDWaveSampler

    def make(**config: Any) -> Any:
        assert config["token"] == token
        return MockDWaveSampler(topology_type="chimera", topology_shape=[4, 4, 4])

    sampler = QuantumAnnealer(make=make)
    dimod.testing.assert_sampler_api(sampler)
    for bqm in (random_model(8, 1, "SPIN"), random_model(2, 1)):
        found = sampler.sample(bqm, num_reads=20)
        assert found.info["num_reads"] == 20
        assert 0 <= found.info["chain_break_fraction"] <= 1
        dimod.testing.assert_response_energies(found, bqm)
    assert found.first.energy == pytest.approx(least_energy(bqm))
    with pytest.raises(ValueError, match="no embedding"):
        sampler.sample(random_model(60, 1), num_reads=1)


@pytest.mark.parametrize(("make", "name"), [(LeapHybrid, "leap_hybrid"), (QuantumAnnealer, "qpu")])
def test_without_a_token_the_error_names_where_to_put_one(
    make: type[Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DWAVE_API_TOKEN", raising=False)
    monkeypatch.delenv("DWAVE_CONFIG_FILE", raising=False)
    with pytest.raises((MissingSecretError, MissingPackageError)) as caught:
        make()
    assert name in str(caught.value)
    is_there = is_installed("dwave.system")
    wanted = "variable=DWAVE_API_TOKEN" if is_there else "pip install dwave-system"
    assert wanted in str(caught.value)
