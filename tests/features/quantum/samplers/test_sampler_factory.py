"""Each name is a sampler that finds the optimum of a small problem within its time."""

import time
from pathlib import Path
from typing import Any

import dimod
import pytest

from infrastructure.core.errors import MissingSecretError, SamplerError
from infrastructure.core.optional import is_installed
from infrastructure.features.quantum.sampler_needs import (
    SAMPLER_NEEDS,
    check_sampler,
    most_variables,
)
from infrastructure.features.quantum.samplers.sampler_factory import (
    SAMPLERS,
    close_sampler,
    create_sampler,
)
from infrastructure.features.quantum.samplers.unbounded_samplers import DIRECT, direct_sampler
from tests.features.quantum.samplers.questions import least_energy, random_model
from tests.slow import slow_but

OF_PACKAGES = {"aer_qaoa": "qiskit_aer"}
REMOTE = {
    "leap_hybrid": "DWAVE_API_TOKEN",
    "qpu": "DWAVE_API_TOKEN",
    "azure_quantum": "AZURE_QUANTUM_CONNECTION_STRING",
}


@pytest.mark.parametrize("name", sorted(SAMPLERS.keys() - REMOTE.keys()))
def test_small_problems_are_solved_by_every_sampler_here(name: str) -> None:
    if not is_installed(OF_PACKAGES.get(name, "dimod")):
        pytest.skip(f"{OF_PACKAGES[name]} is not installed")
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


# Of the two that one company has, one starts a process.
@pytest.mark.parametrize("name", slow_but(["azure_quantum", "qpu"], sorted(REMOTE)))
def test_a_sampler_elsewhere_names_what_it_needs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [*REMOTE.values(), "DWAVE_CONFIG_FILE"]:
        monkeypatch.delenv(variable, raising=False)
    sampler = create_sampler(name)
    try:
        with pytest.raises(SamplerError, match=f"{REMOTE[name]}|pip install"):
            sampler.sample(random_model(3, 0), time_limit=60)
    finally:
        close_sampler(sampler)


def test_the_name_of_the_seed_is_known() -> None:
    assert create_sampler("azure-quantum").name == "azure_quantum"


def test_options_reach_the_sampler() -> None:
    sampler = create_sampler("simulated_annealing", num_sweeps="many")
    try:
        with pytest.raises(
            SamplerError, match=r"sampler_failed\(sampler=simulated_annealing, error=TypeError"
        ):
            sampler.sample(random_model(3, 0), time_limit=60)
    finally:
        close_sampler(sampler)


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("simulated_anealing", {}, r"core\.did_you_mean\(meant=simulated_annealing\)"),
        ("exact", {"num_sweeps": 3}, r"sampler_not_created\(name=exact, .*takes no arguments"),
    ],
)
def test_wrong_names_and_options_are_named(name: str, options: dict[str, Any], code: str) -> None:
    with pytest.raises(ValueError, match=code):
        create_sampler(name, **options)


def test_auto_ends_the_processes_that_it_started() -> None:
    sampler = create_sampler("auto")
    path = dimod.BinaryQuadraticModel({}, {(i, i + 1): (-1.0) ** i for i in range(40)}, "SPIN")
    began = time.monotonic()
    found = sampler.sample(path, time_limit=60)
    assert found.info["sampler"] == "tree_decomposition"
    assert found.first.energy == -40
    assert time.monotonic() - began < 60
    (inner,) = sampler.samplers.values()  # type: ignore[attr-defined]
    process = inner._child.process
    close_sampler(sampler)
    assert process.poll() is not None


@pytest.mark.parametrize("name", sorted(REMOTE))
def test_a_missing_secret_is_reported_before_anything_is_sampled(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = SAMPLER_NEEDS[name].access
    assert access is not None
    monkeypatch.setattr(
        "infrastructure.features.quantum.sampler_needs.refuse_missing", lambda *_: None
    )
    for variable in access.variables:
        monkeypatch.delenv(variable, raising=False)
    missing = rf"quantum\.sampler_access_missing\(name={name}, .*variable={REMOTE[name]}"
    with pytest.raises(MissingSecretError, match=missing):
        check_sampler(name)
    for variable in access.variables:
        with monkeypatch.context() as patched:
            patched.setenv(variable, "known")
            check_sampler(name)


@pytest.mark.parametrize("name", sorted(SAMPLERS.keys() - REMOTE.keys()))
def test_the_largest_problem_is_the_one_that_the_sampler_takes(name: str) -> None:
    if not is_installed(OF_PACKAGES.get(name, "dimod")):
        pytest.skip(f"{OF_PACKAGES[name]} is not installed")
    made = direct_sampler(name, {}) if name in DIRECT else create_sampler(name)
    assert most_variables(name) == made.properties.get("max_variables")


def test_samplers_are_checked_before_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SAMPLER_NEEDS.keys() == SAMPLERS.keys()
    for name in ("auto", "exact", "dense-annealer", "tabu", "json:Own"):
        check_sampler(name)
    monkeypatch.chdir(tmp_path)  # where the other process looks, too
    with pytest.raises(ValueError, match=r"core\.plugin_module_not_found"):
        check_sampler("mine:Own")
    with pytest.raises(ValueError, match=r"core\.plugin_address_invalid"):
        check_sampler(":Own")
    (tmp_path / "mine.py").write_text("raise RuntimeError('imported')")
    check_sampler("mine:Own")
