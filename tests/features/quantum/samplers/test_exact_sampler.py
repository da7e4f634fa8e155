"""All assignments are looked at, and large problems refused."""

import time

import dimod
import numpy as np
import pytest

from infrastructure.features.quantum.samplers.exact_sampler import ExactSampler, all_energies
from tests.features.quantum.samplers.questions import least_energy, random_model


def test_it_is_a_sampler_as_dimod_wants_it() -> None:
    dimod.testing.assert_sampler_api(ExactSampler())


@pytest.mark.parametrize("vartype", ["BINARY", "SPIN"])
def test_it_agrees_with_dimods_own(vartype: str) -> None:
    for seed in range(5):
        bqm = random_model(9, seed, vartype)
        found = ExactSampler().sample(bqm, num_reads=4)
        reference = dimod.ExactSolver().sample(bqm)
        np.testing.assert_allclose(found.record.energy, np.sort(reference.record.energy)[:4])
        dimod.testing.assert_response_energies(found, bqm)


def test_an_index_is_an_assignment_bit_by_bit() -> None:
    bqm = random_model(5, 1)
    energies = all_energies(bqm)
    for number in range(32):
        sample = {f"v{i}": number >> i & 1 for i in range(5)}
        assert energies[number] == pytest.approx(bqm.energy(sample))


def test_a_number_of_ones_is_kept() -> None:
    bqm = random_model(8, 2)
    for ones in range(9):
        found = ExactSampler().sample(bqm, num_ones=ones)
        assert found.first.energy == pytest.approx(least_energy(bqm, ones))
    with pytest.raises(
        ValueError, match=r"quantum\.exact_num_ones_out_of_range.*num_ones=9.*count=8"
    ):
        ExactSampler().sample(bqm, num_ones=9)


def test_twenty_variables_take_no_time_and_more_are_refused() -> None:
    bqm = random_model(20, 0)
    began = time.process_time()
    assert len(ExactSampler().sample(bqm)) == 1
    assert time.process_time() - began < 3
    with pytest.raises(
        ValueError, match=r"quantum\.too_many_variables_to_enumerate.*num_variables=21.*limit=20"
    ):
        ExactSampler().sample(random_model(21, 0))


def test_nothing_has_one_assignment() -> None:
    found = ExactSampler().sample(dimod.BinaryQuadraticModel({}, {}, 2.5, "SPIN"))
    assert found.first.energy == 2.5
