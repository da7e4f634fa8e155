"""G15 in its short form: `make prove-durability` has the long one."""

import pickle
from pathlib import Path

import pytest
import torch

from tests.conftest import save_tiny_llama
from tests.faults.hostile_input import MUTANTS, Watch, fuzz, replaced
from tests.faults.pickle_scan import files_with_pickles, pickles_in
from tests.faults.written_files import run_with_secrets, scanner_finds_pickles
from tests.forks import outcome_of_forked
from tests.slow import slow_but

WATCH = Watch()


def test_a_hostile_version_is_refused_and_does_nothing() -> None:
    outcome = fuzz(300, 0, WATCH)
    assert outcome.mutations == 300
    assert outcome.refused > 225
    assert not outcome.is_bad, WATCH.heard


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("name", slow_but([], MUTANTS))
def test_a_careless_reader_would_show(name: str) -> None:
    place, attribute, defect = MUTANTS[name]
    with replaced(place, attribute, defect):
        assert fuzz(800, 1, WATCH).is_bad


def test_a_run_leaves_no_secret_and_no_pickle_and_reads_none(tmp_path: Path) -> None:
    """Its hooks say secrets aloud; pickles that run code lie beside the model and the run."""
    model = save_tiny_llama(tmp_path / "model")
    ran = run_with_secrets(tmp_path, model, run=outcome_of_forked)
    assert ran.codes == [1, 1, 2, 2, 2], ran.output.decode()
    assert ran.output.count(b"401 for") >= 2
    assert b"failed too" not in ran.output  # what lies in the store does not keep it from saving
    assert ran.leaks() == []
    assert files_with_pickles(ran.directory) == []
    assert len(list(ran.directory.rglob("versions/*.json"))) >= 1
    assert not (tmp_path / "mark").exists()


def test_the_scan_finds_pickles(tmp_path: Path) -> None:
    assert scanner_finds_pickles(tmp_path)


def test_the_scan_takes_no_tensor_for_one() -> None:
    noise = torch.randint(256, (2_000_000,), generator=torch.Generator().manual_seed(0))
    assert pickles_in(noise.to(torch.uint8).numpy().tobytes()) == 0
    assert pickles_in(pickle.dumps([1, 2, "three"])) == 1
