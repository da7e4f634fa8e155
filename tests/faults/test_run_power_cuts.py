"""G2 on whole runs, in short: run directory, output folder and place after a power cut."""

import pytest

from tests.faults.judge import complaints, run_in_fork
from tests.faults.real_cuts import why_not
from tests.faults.run_power_cuts import DEFECTS
from tests.slow import slow_but

MODULE = "tests.faults.run_power_cuts"


@pytest.mark.timeout(600)
def test_the_same_command_goes_on_after_a_power_cut() -> None:
    figures = run_in_fork(MODULE, "--states", "30", "--to-the-end", "1", "--no-defects")
    assert figures["states"] > 25
    assert figures["to_the_end"] == 1
    assert complaints("G2 runs", figures) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("defect", slow_but([], DEFECTS))
def test_a_planted_defect_is_found(defect: str) -> None:
    arguments = ("--states", "60", "--to-the-end", "0", "--defect", defect)
    assert complaints("G2 runs", run_in_fork(MODULE, *arguments)) != []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_file_system() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    figures = run_in_fork("tests.faults.real_cuts", "--cuts", "2")
    assert figures["cuts"] == 2
    assert complaints("G2 real", figures) == []
