"""The table of proofs, and how their figures are judged."""

from importlib.util import find_spec

import pytest

from tests.faults.judge import BAD, complaints
from tests.faults.prove import PROOFS


@pytest.mark.parametrize("name", PROOFS)
def test_every_proof_is_a_module(name: str) -> None:
    module, what = PROOFS[name]
    assert find_spec(module) is not None
    assert what


@pytest.mark.parametrize("name", BAD)
def test_a_bad_figure_is_told(name: str) -> None:
    assert complaints("G0", {name: 0, "trials": 5}) == []
    assert complaints("G0", {name: 2}) == [f"G0: {name} = 2"]


def test_a_mutant_that_was_not_caught_is_told() -> None:
    assert complaints("G0", {"mutants": 2, "mutants_caught": 2}) == []
    assert complaints("G0", {"mutants": 2, "mutants_caught": 1}) != []
