"""The table of proofs, and how their figures are judged."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.faults import prove
from tests.faults.judge import BAD, complaints
from tests.faults.prove import PROOFS, sources_hash


@pytest.mark.parametrize("name", PROOFS)
def test_every_proof_is_a_module(name: str) -> None:
    module, what = PROOFS[name]
    assert find_spec(module) is not None
    assert what


@pytest.mark.parametrize("name", BAD)
def test_a_bad_figure_is_reported(name: str) -> None:
    assert complaints("G0", {name: 0, "trials": 5}) == []
    assert complaints("G0", {name: 2}) == [f"G0: {name} = 2"]


def test_a_mutant_that_was_not_caught_is_reported() -> None:
    assert complaints("G0", {"mutants": 2, "mutants_caught": 2}) == []
    assert complaints("G0", {"mutants": 2, "mutants_caught": 1}) != []


def test_what_holds_is_not_proved_again_until_a_source_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "infrastructure" / "module.py"
    source.parent.mkdir()
    source.write_text("a = 1")
    found = {"tests.faults.races": {"lost": 0, "races": 3}, "tests.faults.lies": {"believed": 1}}
    proved: list[str] = []

    def run_module(name: str) -> dict[str, int]:
        proved.append(name)
        return found[name]

    monkeypatch.setattr(prove, "ROOT", tmp_path)
    monkeypatch.setattr(prove, "run_module", run_module)
    monkeypatch.setattr(prove, "sources_hash", lambda: sources_hash(tmp_path))
    monkeypatch.setattr(sys, "argv", ["prove", "G12", "G5"])
    assert prove.main() == 1
    assert prove.main() == 1
    assert proved == ["tests.faults.races", "tests.faults.lies", "tests.faults.lies"]
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["G12"] == {"lost": 0, "races": 3}
    assert "G5: believed = 1" in captured.err

    source.write_text("a = 2")
    prove.main()
    assert proved[3:] == ["tests.faults.races", "tests.faults.lies"]
    monkeypatch.setattr(sys, "argv", ["prove", "--anew", "G12"])
    prove.main()
    assert proved[5:] == ["tests.faults.races"]
