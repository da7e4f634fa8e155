"""Each name is a sampler that finds the optimum of a small problem within its time."""

import time
from pathlib import Path
from typing import Any

import dimod
import pytest

from infrastructure.core.errors import MissingSecretError, SamplerError
from infrastructure.features.quantum.sampler_needs import (
    SAMPLER_NEEDS,
    check_sampler,
    most_variables,
)
from infrastructure.features.quantum.samplers import auto_sampler
from infrastructure.features.quantum.samplers.sampler_factory import (
    SAMPLERS,
    close_sampler,
    create_sampler,
)
from tests.features.quantum.samplers.questions import least_energy, random_model

REMOTE, VARIABLE = "azure_quantum", "AZURE_QUANTUM_CONNECTION_STRING"


@pytest.mark.parametrize(
    "name", [*sorted(SAMPLERS.keys() - {REMOTE}), "dwave.samplers:TabuSampler"]
)
def test_small_problems_are_solved_by_every_sampler_here(name: str) -> None:
    sampler = create_sampler(name)
    dimod.testing.assert_sampler_api(sampler)
    given = {"seed": 0, "time_limit": 60}
    known: dict[str, Any] = {k: v for k, v in given.items() if k in sampler.parameters}
    try:
        for number, vartype in enumerate(("BINARY", "SPIN")):
            bqm = random_model(9, number, vartype)
            found = sampler.sample(bqm, **known)
            assert found.first.energy == pytest.approx(least_energy(bqm))
            dimod.testing.assert_response_energies(found, bqm)
    finally:
        close_sampler(sampler)


def test_a_sampler_elsewhere_names_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    sampler = create_sampler(REMOTE)
    try:
        with pytest.raises(SamplerError, match=f"{VARIABLE}|pip install"):
            sampler.sample(random_model(3, 0), time_limit=60)
    finally:
        close_sampler(sampler)


def test_the_name_of_the_seed_is_known() -> None:
    assert create_sampler("azure-quantum").name == REMOTE


def test_a_wrong_name_is_named() -> None:
    with pytest.raises(ValueError, match=r"core\.did_you_mean\(meant=simulated_annealing\)"):
        create_sampler("simulated_anealing")


def test_auto_ends_the_processes_that_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_sampler, "DENSE_VARIABLES", 0)
    monkeypatch.setattr(auto_sampler, "LEAST_DENSITY", 0.5)
    sampler = create_sampler("auto")
    path = dimod.BinaryQuadraticModel({}, {(i, i + 1): (-1.0) ** i for i in range(40)}, "SPIN")
    began = time.monotonic()
    found = sampler.sample(path, time_limit=60)
    assert found.info["sampler"] == "simulated_annealing"
    assert found.first.energy == -40
    assert time.monotonic() - began < 60
    (inner,) = sampler.samplers.values()  # type: ignore[attr-defined]
    process = inner._child.process
    close_sampler(sampler)
    assert process.poll() is not None


def test_a_missing_secret_is_reported_before_anything_is_sampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "infrastructure.features.quantum.sampler_needs.refuse_missing", lambda *_: None
    )
    for variable in SAMPLER_NEEDS[REMOTE].variables:
        monkeypatch.delenv(variable, raising=False)
    missing = rf"quantum\.sampler_access_missing\(name={REMOTE}, .*variable={VARIABLE}"
    with pytest.raises(MissingSecretError, match=missing):
        check_sampler(REMOTE)
    for variable in SAMPLER_NEEDS[REMOTE].variables:
        with monkeypatch.context() as patched:
            patched.setenv(variable, "known")
            check_sampler(REMOTE)


def test_the_largest_problem_is_the_one_that_the_sampler_takes() -> None:
    for name in ("auto", "exact", "dense_annealer"):
        assert most_variables(name) == create_sampler(name).properties.get("max_variables")


def test_samplers_are_checked_before_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SAMPLER_NEEDS.keys() == SAMPLERS.keys()
    for name in ("auto", "exact", "dense-annealer", "simulated_annealing", "json:Own"):
        check_sampler(name)
    monkeypatch.chdir(tmp_path)  # where the other process looks, too
    with pytest.raises(ValueError, match=r"core\.plugin_module_not_found"):
        check_sampler("mine:Own")
    with pytest.raises(ValueError, match=r"core\.plugin_address_invalid"):
        check_sampler(":Own")
    (tmp_path / "mine.py").write_text("raise RuntimeError('imported')")
    check_sampler("mine:Own")
