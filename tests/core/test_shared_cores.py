"""Threads that wait sleep soon, and what the environment says stays."""

import subprocess
import sys

import pytest

from infrastructure.core.shared_cores import SPINS_BEFORE_SLEEP, share_the_cores

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": str(SPINS_BEFORE_SLEEP)}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
        ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "7"}),
    ],
)
def test_what_the_environment_sets_stays(
    given: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = dict(given)
    monkeypatch.setattr("os.environ", environment)
    share_the_cores()
    assert environment == expected


@pytest.mark.skipif(sys.platform != "linux", reason="torch has another OpenMP elsewhere")
def test_torch_knows_it() -> None:
    code = (
        "from infrastructure.core.shared_cores import share_the_cores\n"
        "share_the_cores()\nimport torch\n"
    )
    command = ["env", "-u", NAMES[0], "-u", NAMES[1], "OMP_DISPLAY_ENV=VERBOSE", sys.executable]
    shown = subprocess.run([*command, "-c", code], capture_output=True, text=True, check=True)
    assert f"GOMP_SPINCOUNT = '{SPINS_BEFORE_SLEEP}'" in shown.stderr
