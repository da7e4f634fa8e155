"""Each tick of the table of models is trained here; the table is the one of the numbers."""

import json
import os

import pytest

from benchmarks import families
from benchmarks.families import METHODS, RESULTS, Cell, Workshop, cells, has_learnt
from benchmarks.family_models import (
    FAMILIES,
    SEEING,
    WITH_TORCHVISION,
    save_language_model,
    save_seeing_model,
)
from benchmarks.family_table import MISSING, PAGE, Missing, with_tables
from infrastructure.config.registries import METHODS as METHODS_OF_TRL
from infrastructure.core.optional import is_installed
from infrastructure.models import model_manager
from tests.slow import slow
from tests.training.methods.method_runs import methods_here
from tests.training.usable_torchvision import has_torchvision

CELLS = {str(cell): cell for cell in cells()}
BY_UNSLOTH = [name for name, cell in CELLS.items() if cell.backend == "unsloth"]


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """One for all processes of the tests."""
    folder = tmp_path_factory.getbasetemp()
    return Workshop((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "families")


@slow
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_learns(name: str, workshop: Workshop) -> None:
    cell = CELLS[name]
    if cell.family in WITH_TORCHVISION and not has_torchvision():
        pytest.skip("torchvision is not installed")
    if cell.method in METHODS_OF_TRL.built_in and cell.method not in methods_here():
        pytest.skip("the installed TRL has no such method")
    if cell.backend == "unsloth":
        if not is_installed("unsloth"):
            pytest.skip("unsloth is not installed")
        outcome = workshop.by_unsloth(BY_UNSLOTH)[name]
        assert "failed" not in outcome, outcome
    else:
        outcome = families.asdict(families.train_cell(cell, workshop))
    assert has_learnt(outcome), outcome


def test_the_table_is_the_one_of_the_numbers() -> None:
    page, results = PAGE.read_text(), json.loads(RESULTS.read_text())
    assert with_tables(page, results) == page
    for name, outcome in results["cells"].items():
        before, after = outcome["before"], outcome["after"]
        better = (before - after) if outcome["measure"] == families.LOSS else (after - before)
        assert outcome["gain_percent"] == pytest.approx(100 * better / before)
        assert outcome["test"].endswith(f"::test_a_cell_learns[{name}]")
    assert results["cells"].keys() == CELLS.keys()
    assert results["bases"].keys() == {*FAMILIES, *SEEING}
    for name, base in results["bases"].items():
        assert base["loss"] < base["unigram_entropy"], name


@pytest.mark.parametrize("missing", [one for one in MISSING if one.refused], ids=lambda m: m.why)
def test_what_is_refused_is_refused_before_a_model_is_loaded(
    missing: Missing, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell(missing.families[0], missing.methods[0], missing.backend)
    save = save_seeing_model if cell.family in SEEING else save_language_model
    fresh = workshop.folder / f"untrained-{cell.family}"
    model = fresh if fresh.exists() else save(cell.family, fresh)
    method = METHODS[cell.method]
    reads_text = cell.family in FAMILIES or "method" in method.settings
    settings = {**method.settings, "backend": cell.backend}
    monkeypatch.setattr(model_manager, "load_causal_lm", None)
    with pytest.raises(ValueError, match=missing.refused):
        workshop.train(str(cell), method.data if reads_text else "colours", model, settings)
