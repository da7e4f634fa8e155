"""Threads that wait sleep soon, and what the environment says stays."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

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
    """Its OpenMP reads the environment when it is loaded, and says what it has read."""
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    [library] = Path(torch.origin).parent.glob("lib/libgomp*")
    code = (
        "import ctypes\nfrom infrastructure.core.shared_cores import share_the_cores\n"
        f"share_the_cores()\nctypes.CDLL({str(library)!r})\n"
    )
    command = ["env", "-u", NAMES[0], "-u", NAMES[1], "OMP_DISPLAY_ENV=VERBOSE", sys.executable]
    shown = subprocess.run([*command, "-c", code], capture_output=True, text=True, check=True)
    assert f"GOMP_SPINCOUNT = '{SPINS_BEFORE_SLEEP}'" in shown.stderr
