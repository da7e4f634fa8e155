"""Detection of a working NVIDIA driver.

This module uses only the standard library, because the installer runs it before anything is
installed.
"""

import shutil
import subprocess
from pathlib import Path

NVIDIA_SMI_TIMEOUT_SECONDS = 10.0


def nvidia_driver_present(root: Path = Path("/")) -> bool:
    """Return whether an NVIDIA driver is loaded (Linux, WSL), by its files or `nvidia-smi`.

    A machine may have the program `nvidia-smi` without a driver, so the program must also list a
    GPU within ten seconds. `root` is for tests.
    """
    if (root / "proc/driver/nvidia/version").exists():
        return True
    if (root / "dev/dxg").exists() and (root / "usr/lib/wsl/lib/libcuda.so.1").exists():
        return True
    return _nvidia_smi_lists_a_gpu()


def _nvidia_smi_lists_a_gpu() -> bool:
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    try:
        listing = subprocess.run(
            [program, "-L"],
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listing.returncode == 0 and listing.stdout.startswith("GPU ")
